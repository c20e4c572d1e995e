"""When the ops of a task ran, in all its calls."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.period import Part, Times
from sim.plan.words.program import Task


class TaskTimes(Struct, frozen=True):
    """All calls of one task of one rank: ``starts_s[c, j]`` is when op j of the c-th call began.

    ``nodes[c] + j`` is that op's node, where ``nodes[c]`` is not -1 (a coalesced call). ``wired``: sends of messages
    that are one node with their receive.
    """

    task: Task
    calls: NDArray[np.int64]
    nodes: NDArray[np.int64]
    starts_s: Times
    ends_s: Times
    wired: bool

    def at_rows(self, rows: slice | NDArray[np.int64]) -> "TaskTimes":
        """Return those of the calls at some places."""
        return replace(
            self, calls=self.calls[rows], nodes=self.nodes[rows], starts_s=self.starts_s[rows], ends_s=self.ends_s[rows]
        )


class TimesOfRanks(Struct, frozen=True, eq=False, dict=True):
    """All calls of one task of several ranks, one rank's after the other's: ``ranks[k]`` has ``num_calls[k]`` of them.

    for rank, times in found.of_each():
        print(rank, times.starts_s.min())
    """

    ranks: tuple[int, ...]
    num_calls: NDArray[np.int64]
    times: TaskTimes

    @classmethod
    def of(cls, num_calls: Mapping[int, int], times: TaskTimes) -> "TimesOfRanks":
        """Return the times of ranks that call the task so many times."""
        return cls(tuple(num_calls), np.array([*num_calls.values()], np.int64), times)

    @classmethod
    def alone(cls, rank: int, times: TaskTimes) -> "TimesOfRanks":
        """Return the times of one rank."""
        return cls.of({rank: len(times.calls)}, times)

    @property
    def begin_s(self) -> float:
        """Return when the first op begins."""
        return float(self.times.starts_s.min())

    @property
    def begins_s(self) -> Times:
        """Return when the first op of each rank begins."""
        begins_s: Times = np.minimum.reduceat(self.times.starts_s.ravel(), self.begins * self.times.starts_s.shape[1])
        return begins_s

    @property
    def ends_s(self) -> Times:
        """Return when the last op of each rank ends."""
        ends_s: Times = np.maximum.reduceat(self.times.ends_s.ravel(), self.begins * self.times.ends_s.shape[1])
        return ends_s

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Return the place of each rank's first call."""
        return np.cumsum(self.num_calls) - self.num_calls

    def of_each(self) -> Iterator[tuple[int, TaskTimes]]:
        """Yield the times of each rank; they are not copied."""
        found = self.times
        for rank, begin, count in zip(self.ranks, self.begins.tolist(), self.num_calls.tolist(), strict=True):
            yield rank, found.at_rows(slice(begin, begin + count))

    def seconds(self, counts: NDArray[np.int64]) -> Times:
        """Return how long every rank is at each op, each call counted so many times: ranks x ops."""
        of_calls_s = self.times.ends_s - self.times.starts_s
        of_calls_s *= counts[:, None]
        seconds: Times = np.add.reduceat(of_calls_s, self.begins)
        return seconds

    def seconds_in(self, parts: Sequence[Part]) -> Times:
        """Return how long every rank is at each op in parts of time, as often as these happen: ranks x ops.

        The parts follow each other. Few calls run in one that happens more than once.
        """
        starts_s, ends_s = self.times.starts_s, self.times.ends_s
        of_calls_s = _inside_s(starts_s, ends_s, parts[0].begin_s, parts[-1].end_s)
        seconds: Times = np.add.reduceat(of_calls_s, self.begins)
        place_of = np.repeat(np.arange(len(self.ranks)), self.num_calls)
        for part in parts:
            if part.times > 1:
                runs = np.flatnonzero(((ends_s > part.begin_s) & (starts_s < part.end_s)).any(axis=1))
                once_s = _inside_s(starts_s[runs], ends_s[runs], part.begin_s, part.end_s)
                np.add.at(seconds, place_of[runs], (part.times - 1) * once_s)
        return seconds

    def of_some(self, places: Sequence[int]) -> "TimesOfRanks":
        """Return the times of the ranks at some places in ``ranks``."""
        if len(places) == len(self.ranks):
            return self
        num_calls = self.num_calls[list(places)]
        rows = np.repeat(self.begins[list(places)] - np.cumsum(num_calls) + num_calls, num_calls)
        rows += np.arange(len(rows))
        return TimesOfRanks(tuple(self.ranks[place] for place in places), num_calls, self.times.at_rows(rows))

    def within(self, calls: Mapping[int, range]) -> "TimesOfRanks":
        """Return the times of the ranks that have some of these calls, which are in a row, in those calls."""
        bounds = [(among.start, among.stop) for among in (calls.get(rank, range(0)) for rank in self.ranks)]
        first, stop = np.repeat(np.array(bounds), self.num_calls, axis=0).T
        kept = (self.times.calls >= first) & (self.times.calls < stop)
        counts = np.add.reduceat(kept.astype(np.int64), self.begins).tolist()
        num_calls = {rank: count for rank, count in zip(self.ranks, counts, strict=True) if count}
        return TimesOfRanks.of(num_calls, self.times.at_rows(np.flatnonzero(kept)))

    def counted_from(self, first: Mapping[int, int], begin_s: float) -> "TimesOfRanks":
        """Return the same with each rank's calls counted from its first, and times from a moment.

        The times are changed where they lie: who calls it has no other use for them.
        """
        found = self.times
        for times_s in (found.starts_s, found.ends_s):
            np.subtract(times_s, begin_s, out=times_s)
        calls = found.calls - np.repeat([first[rank] for rank in self.ranks], self.num_calls)
        return replace(self, times=replace(found, calls=calls))


def _inside_s(starts_s: Times, ends_s: Times, begin_s: float, end_s: float) -> Times:
    """Return how long spans are in a part of time."""
    inside_s = np.minimum(ends_s, end_s)
    np.maximum(inside_s, begin_s, out=inside_s)
    found: Times = np.subtract(inside_s, np.minimum(np.maximum(starts_s, begin_s), end_s), out=inside_s)
    return found
