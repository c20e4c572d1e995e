"""What a task looks like from the inside: dependencies between its ops, and its touch on buffers outside."""

from collections.abc import Iterable, Sequence, Set
from itertools import compress

import numpy as np
from msgspec import Struct

from sim.plan.words.program import Program, Task

NO_PATH = float("-inf")

Names = tuple[str, ...]


class TaskShape(Struct, frozen=True):
    """A task's ops with their in-task dependencies (stream order and buffer hazards).

    Ops are numbered in issue order. ``first`` and ``last`` are each stream's ends. ``reads`` lists the ops
    that read a buffer as it was before the task; ``overwrites`` the first op that writes it;
    ``leaves`` the last writer (-1: none) and the readers since, as later tasks find it. Of a program's task
    (``shapes_of``) only buffers are listed that ops of several streams touch: order on a stream keeps the others.
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

    def offsets(self, durations_s: Sequence[float], entries: Iterable[int]) -> list[list[float]]:
        """Return, per entry op, each op's start relative to the entry's release (-inf: does not wait for it).

        With entries released at times t_e, op j starts at max over e of t_e + offset[e][j]: the longest path.
        """
        table = []
        for entry in entries:
            starts: list[float] = []
            for j, predecessors in enumerate(self.predecessors):
                if len(predecessors) == 1:  # as most ops have
                    (i,) = predecessors
                    start = starts[i] + durations_s[i]
                else:
                    start = max([starts[i] + durations_s[i] for i in predecessors], default=NO_PATH)
                starts.append(max(start, 0.0) if j == entry else start)
            table.append(starts)
        return table


def shapes_of(program: Program) -> dict[str, TaskShape]:
    """Return the shape of each task of a program."""
    several = _on_several_streams(program)
    return {name: analyse(task, several) for name, task in program.tasks.items()}


def _on_several_streams(program: Program) -> set[str]:
    """Return the buffers that ops of more than one stream touch."""
    distinct, touches = program.distinct_ops, program.touches
    numbers = {stream: number for number, stream in enumerate(dict.fromkeys(op.stream for op in distinct.ops))}
    of_op = np.array([numbers[op.stream] for op in distinct.ops], np.int64)[distinct.places]
    stream = of_op[touches.op]
    some = np.zeros(touches.num_buffers + 1, np.int64)
    some[touches.buffer] = stream
    is_on_several = np.zeros(len(some), np.bool_)
    is_on_several[touches.buffer[stream != some[touches.buffer]]] = True
    return set(compress(program.buffers, is_on_several.tolist()))


def analyse(task: Task, several: Set[str] | None = None) -> TaskShape:
    """Return the shape of a task. ``several``: the buffers that are listed; None: all."""
    streams = [op.stream for op in task.ops]
    tail: dict[str, int] = {}
    first: dict[str, int] = {}
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    reads: dict[str, list[int]] = {}
    overwrites: dict[str, int] = {}
    predecessors: list[tuple[int, ...]] = []
    ancestors: list[int] = []
    for j, (stream, (read, overwritten)) in enumerate(zip(streams, _touched(task, several), strict=True)):
        hazards: list[int] = []  # of other streams: those before it on its own are waited for with the last of them
        for name in read:
            found = readers.get(name)
            if found is None:  # not written yet: until it is, its readers are those of its value before the task
                reads[name] = readers[name] = [j]
                continue
            found.append(j)
            written = writer.get(name)
            if written is not None and streams[written] != stream:
                hazards.append(written)
        for name in overwritten:
            for i in readers.get(name, ()):
                if streams[i] != stream:
                    hazards.append(i)
            written = writer.get(name)
            if written is None:
                overwrites[name] = j
            elif streams[written] != stream:
                hazards.append(written)
            writer[name], readers[name] = j, []
        if stream in tail:
            hazards.append(tail[stream])
        else:
            first[stream] = j
        tail[stream] = j
        waits = tuple(hazards) if len(hazards) == 1 else _without_implied(hazards, ancestors)  # one: of most ops
        mask = 1 << j
        for i in waits:
            mask |= ancestors[i]
        predecessors.append(waits)
        ancestors.append(mask)
    return TaskShape(
        streams=tuple(streams),
        predecessors=tuple(predecessors),
        ancestors=tuple(ancestors),
        first=first,
        last=tail,
        reads={name: tuple(ops) for name, ops in reads.items()},
        overwrites=overwrites,
        leaves={name: (writer.get(name, -1), tuple(readers[name])) for name in {**writer, **readers}},
    )


def _touched(task: Task, several: Set[str] | None) -> list[tuple[Names, Names]]:
    """Return what each op of a task reads and writes of some buffers; None: of all."""
    every = [(op.reads, op.writes) for op in task.ops]
    if several is None:
        return every
    kept = several.__contains__
    return [(tuple(filter(kept, reads)), tuple(filter(kept, writes))) for reads, writes in every]


def _without_implied(ops: Sequence[int], ancestors: Sequence[int]) -> tuple[int, ...]:
    """Return those of some ops that no other one of them waits for, in order."""
    if len(ops) == 2:  # by far the most frequent number
        early, late = ops if ops[0] < ops[1] else ops[::-1]
        return (late,) if ancestors[late] >> early & 1 else (early, late)
    implied = 0
    for i in ops:
        implied |= ancestors[i] ^ 1 << i
    return tuple(sorted({i for i in ops if not implied >> i & 1}))
