"""Parts of a path through a run: single ops, messages, and ways through calls.

A way leads through many ops of one call, whether the call is one event or its ops are. It is kept as arrays: what is
asked of a path is answered for all its ops at once. Its steps are written out only for those who read them one by one.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.period import Times
from sim.plan.words.op import Op


class Step(NamedTuple):
    """A part of the path: an op of a rank's call, or a message on its way (no op), from when to when in seconds.

    ``times``: how often the path comes by it, where the run passed through its period once for many.
    """

    rank: int
    call: int
    op: Op | None
    start_s: float
    end_s: float
    times: int = 1

    @property
    def duration_s(self) -> float:
        """Return how long the path stays with it, all times together."""
        return self.times * (self.end_s - self.start_s)

    def within(self, start_s: float, end_s: float) -> "Step":
        """Return the step between other moments."""
        return Step(self.rank, self.call, self.op, start_s, end_s, self.times)


class Way(Struct, frozen=True, eq=False):
    """A way through one call of one or more ranks, the last op first; it ends at ``end_s``.

    ``ops``: those of the call's task. ``places``: the place of each op of the way among those of all ranks, one rank's
    after the other's. ``starts_s``: its start, no later than that of the op before it in this order.
    """

    ranks: tuple[int, ...]
    call: int
    ops: tuple[Op, ...]
    places: NDArray[np.int64]
    starts_s: Times
    end_s: float
    times: int = 1

    @property
    def start_s(self) -> float:
        """Return when the way begins."""
        return float(self.starts_s[-1])

    @property
    def durations_s(self) -> Times:
        """Return how long the path stays with each op, all times together."""
        durations_s: Times = -self.times * np.diff(self.starts_s, prepend=self.end_s)
        return durations_s

    def op_at(self, place: int) -> tuple[int, Op]:
        """Return the rank and the op of a place."""
        member, own = divmod(place, len(self.ops))
        return self.ranks[member], self.ops[own]

    def steps(self) -> Iterator[Step]:
        """Yield the ops as steps, the last first; those that take no time are left out."""
        end_s = self.end_s
        for place, start_s in zip(self.places.tolist(), self.starts_s.tolist(), strict=True):
            if start_s < end_s:
                rank, op = self.op_at(place)
                yield Step(rank, self.call, op, start_s, end_s, self.times)
                end_s = start_s

    def cut(self, moment_s: float) -> tuple["Way | None", "Way | None"]:
        """Return the ops that begin at a moment or later, and those that begin before it; None: there are none."""
        at = int(np.count_nonzero(self.starts_s >= moment_s))
        if at in {0, len(self.places)}:
            return (None, self) if at == 0 else (self, None)
        late = replace(self, places=self.places[:at], starts_s=self.starts_s[:at])
        early = replace(self, places=self.places[at:], starts_s=self.starts_s[at:], end_s=late.start_s)
        return late, early


PathPart = Step | Way


class LeftOut(Struct, frozen=True):
    """Where a path goes through periods that were left out, of so many seconds each: from when to when."""

    start_s: float
    end_s: float
    period_s: float

    def within(self, start_s: float, end_s: float) -> "LeftOut":
        """Return the same between other moments."""
        return LeftOut(start_s, end_s, self.period_s)
