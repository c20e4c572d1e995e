"""What a task looks like from the inside: dependencies between its ops, and its touch on buffers outside."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from sim.plan.words.program import Task

NO_PATH = float("-inf")


class TaskShape(Struct, frozen=True):
    """A task's ops with their in-task dependencies (stream order and buffer hazards).

    Ops are numbered in issue order. ``first`` and ``last`` are each stream's ends. ``reads`` lists the ops
    that read a buffer as it was before the task; ``overwrites`` the first op that writes it;
    ``leaves`` the last writer (-1: none) and the readers since, as later tasks find it.
    """

    streams: tuple[str, ...]
    predecessors: tuple[tuple[int, ...], ...]
    ancestors: tuple[int, ...]
    first: dict[str, int]
    last: dict[str, int]
    reads: dict[str, tuple[int, ...]]
    overwrites: dict[str, int]
    leaves: dict[str, tuple[int, tuple[int, ...]]]

    def descends(self, op: int, ancestor: int) -> bool:
        """Return whether ``op`` is ``ancestor`` or must wait for it."""
        return bool(self.ancestors[op] >> ancestor & 1)

    def streams_of(self, buffer: str) -> frozenset[str]:
        """Return the streams of the ops by which other tasks wait for this one's use of a buffer, or it for theirs."""
        writer, readers = self.leaves[buffer]
        ops = [*readers, *self.reads.get(buffer, ()), self.overwrites.get(buffer, -1), writer]
        return frozenset(self.streams[op] for op in ops if op >= 0)

    def offsets(self, durations_s: Sequence[float], entries: Iterable[int]) -> list[list[float]]:
        """Return, per entry op, each op's start relative to the entry's release (-inf: does not wait for it).

        With entries released at times t_e, op j starts at max over e of t_e + offset[e][j]: the longest path.
        """
        table = []
        for entry in entries:
            starts: list[float] = []
            for j, predecessors in enumerate(self.predecessors):
                start = max((starts[i] + durations_s[i] for i in predecessors), default=NO_PATH)
                starts.append(max(start, 0.0) if j == entry else start)
            table.append(starts)
        return table


def analyse(task: Task) -> TaskShape:
    """Return the shape of a task."""
    tail: dict[str, int] = {}
    first: dict[str, int] = {}
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    reads: dict[str, list[int]] = {}
    overwrites: dict[str, int] = {}
    predecessors: list[tuple[int, ...]] = []
    ancestors: list[int] = []
    for j, op in enumerate(task.ops):
        stream = op.stream
        waits: set[int] = {tail[stream]} if stream in tail else set()
        for name in op.reads:
            if (written := writer.get(name)) is not None:
                waits.add(written)
            else:
                reads.setdefault(name, []).append(j)
            if name in readers:
                readers[name].append(j)
            else:
                readers[name] = [j]
        for name in op.writes:
            if before := readers.get(name):
                waits.update(before)
            if (written := writer.get(name)) is not None:
                waits.add(written)
            else:
                overwrites[name] = j
            writer[name], readers[name] = j, []
        waits.discard(j)
        tail[stream] = j
        first.setdefault(stream, j)
        mask = implied = 0
        for i in waits:
            mask |= ancestors[i]
            implied |= ancestors[i] ^ 1 << i
        predecessors.append(tuple(sorted([i for i in waits if not implied >> i & 1])))
        ancestors.append(mask | 1 << j)
    return TaskShape(
        streams=tuple(op.stream for op in task.ops),
        predecessors=tuple(predecessors),
        ancestors=tuple(ancestors),
        first=first,
        last=tail,
        reads={name: tuple(ops) for name, ops in reads.items()},
        overwrites=overwrites,
        leaves={name: (writer.get(name, -1), tuple(readers.get(name, ()))) for name in {**writer, **readers}},
    )
