"""Dependencies of every op of a program: the previous op of its stream, and earlier ops on the same buffers."""

from collections import defaultdict
from collections.abc import Iterator

from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program

Instance = tuple[str, int | None]
"""A buffer, and the micro-batch of its instance if it has one per micro-batch."""


def dependencies(program: Program) -> Iterator[tuple[int, ...]]:
    """Yield, for every op in issue order, the indices in that order of the ops that must end before it begins."""
    tail: dict[str, int] = {}
    for place, (earlier, (_, _, _, op)) in enumerate(zip(hazards(program), program.instances(), strict=True)):
        before = tail.get(op.stream)
        tail[op.stream] = place
        yield earlier if before is None else tuple(sorted({*earlier, before}))


def hazards(program: Program) -> Iterator[tuple[int, ...]]:
    """Yield the dependencies without those of streams: read after write, write after read, write after write."""
    repeated = per_microbatch(program)
    writer: dict[Instance, int] = {}
    readers: dict[Instance, list[int]] = defaultdict(list)
    for place, (_, call, _, op) in enumerate(program.instances()):
        microbatches = {name: call.microbatch if name in repeated else None for name in (*op.reads, *op.writes)}
        earlier = {writer[instance] for instance in microbatches.items() if instance in writer}
        for name in op.writes:
            earlier.update(readers.pop((name, microbatches[name]), ()))
            writer[name, microbatches[name]] = place
        for name in op.reads:
            readers[name, microbatches[name]].append(place)
        yield tuple(sorted(earlier - {place}))


def per_microbatch(program: Program) -> frozenset[str]:
    """Return the names of the buffers that have an instance per micro-batch."""
    return frozenset(name for name, buffer in program.buffers.items() if buffer.scope is Scope.MICROBATCH)
