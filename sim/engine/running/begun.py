"""The begin of a step: as many of each rank's first calls as wait for none of the others."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.folding.folding import Folding
from sim.plan.words.calls import Calls
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Channel, Collective, Op, Recv, Send, channel_of
from sim.plan.words.program import Program

Ints = NDArray[np.int64]

Meeting = Channel | tuple[str, tuple[str, ...], tuple[int, ...]]
"""What meets in order: messages of a channel, or collectives of a stream and group."""

_NEVER: Final = int(np.iinfo(np.int64).max)


def first_calls(
    mesh: Mesh, folding: Folding, programs: Mapping[int, Program], most: Mapping[int, int]
) -> Mapping[int, int]:
    """Return how many calls each simulated rank makes where none makes more than ``most``, nor waits in vain.

    A rank stops before a call that receives a message which nobody sends, or takes part in a collective without the
    others. A message may be sent that nobody receives.
    """
    counts = dict(most)
    meetings = {rank: _meetings(mesh, folding, rank, programs[rank], most[rank]) for rank in programs}
    waiting = list(programs)
    while waiting:
        rank = waiting.pop()
        count = min((found.until(meetings, counts) for found in meetings[rank].values()), default=counts[rank])
        if count < counts[rank]:
            counts[rank] = count
            waiting += {other for found in meetings[rank].values() for other, _ in found.others}
    return counts


class _Meetings(Struct, frozen=True):
    """The calls of a rank that meet others in order, and for whom they wait: ranks, and what it is called there."""

    calls: Ints
    others: tuple[tuple[int, Meeting], ...]

    def until(self, meetings: Mapping[int, Mapping[Meeting, "_Meetings"]], counts: Mapping[int, int]) -> int:
        """Return the first call that meets none of so many calls of the other ranks."""
        size = len(self.calls)
        met = min([size, *(_num_made(meetings[other].get(name), counts[other]) for other, name in self.others)])
        return int(self.calls[met]) if met < size else _NEVER


def _num_made(meetings: _Meetings | None, count: int) -> int:
    """Return how many of some meetings are among so many first calls."""
    return 0 if meetings is None else int(np.searchsorted(meetings.calls, count))


def _meetings(mesh: Mesh, folding: Folding, rank: int, program: Program, most: int) -> dict[Meeting, _Meetings]:
    """Return what the first calls of a rank meet of other simulated ranks."""
    calls = Calls.of(program.calls)[:most]
    found: dict[Meeting, list[Ints]] = {}
    others: dict[Meeting, tuple[tuple[int, Meeting], ...]] = {}
    for number in np.flatnonzero(np.bincount(calls.tasks, minlength=len(calls.names))).tolist():
        places = np.flatnonzero(calls.tasks == number)
        for op in program.tasks[calls.names[number]].ops:
            for name, met in _met(mesh, folding, rank, op):
                found.setdefault(name, []).append(places)
                others[name] = met
    return {name: _Meetings(np.sort(np.concatenate(parts)), others[name]) for name, parts in found.items()}


def _met(mesh: Mesh, folding: Folding, rank: int, op: Op) -> Iterator[tuple[Meeting, tuple[tuple[int, Meeting], ...]]]:
    """Yield what an op is called among those that meet in order, if it does, and for whom it waits."""
    if isinstance(op, Send):
        yield channel_of(op), ()
    elif isinstance(op, Recv):
        peer = folding.stands_for[mesh.shift(rank, op.axis, op.offset)]
        yield channel_of(op), ((peer, (op.axis, -op.offset, op.direction, True)),)
    elif isinstance(op, Collective):
        name = (op.stream, op.axes, op.members)
        met = tuple((other, name) for other in folding.classes_of(mesh, rank, op) if other != rank)
        if met:
            yield name, met
