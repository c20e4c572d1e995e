"""Jobs that are kept in the order of a policy, so that a decision need not rank them all."""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from msgspec import Struct

from sim.jobs.active import ActiveJob

Rank = tuple[float, int] | tuple[float, float, int]
"""The key of a job's rank, the least first; the last number is the job's index."""
Ranked = tuple[Rank, ActiveJob]


class Ranking(Struct, frozen=True):
    """The ranking of jobs by a policy.

    ``waiting``: the rank of a job that waits, at an instant; it stays the same for as long as the job waits.
    ``running``: the place of a running job in an order that stays the same until it attains a watched service.
    ``most``: at an instant, a rank that no running job of that place, or of one before it, exceeds.
    """

    waiting: Callable[[ActiveJob, float], Rank]
    running: Callable[[ActiveJob, float], Rank]
    most: Callable[[Rank, float], Rank]


class Order:
    """Jobs by rank, the least first."""

    def __init__(self) -> None:
        self.jobs: list[Ranked] = []
        self._ranks: dict[int, Rank] = {}

    def add(self, each: ActiveJob, rank: Rank) -> None:
        """Add a job."""
        insort(self.jobs, (rank, each))
        self._ranks[each.index] = rank

    def remove(self, each: ActiveJob) -> None:
        """Remove a job."""
        del self.jobs[bisect_left(self.jobs, (self._ranks.pop(each.index),))]


class Ordered(Struct, frozen=True):
    """All jobs in order: those that wait by rank, those that run by the place of ``Ranking.running``."""

    waiting: Sequence[Ranked]
    running: Sequence[Ranked]
    most: Callable[[Rank, float], Rank]
