"""When the ops of a task ran, in all its calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.period import Part, Times
from sim.integers import Ints
from sim.plan.words.program import Task
from sim.sorting import run_begins


class TaskTimes(Struct, frozen=True):
    """All calls of one task of one rank, or of several: call c takes course ``course_of[c]`` from ``from_s[c]`` on.

    Op j of course k begins ``begin_after_s[k, j]`` and ends ``end_after_s[k, j]`` after that moment. Calls that run by
    one pattern take one course, so few numbers say when many ops ran; other calls have courses of their own.

    ``nodes[c] + j`` is the node of op j, where ``nodes[c]`` is not -1 (a coalesced call). ``wired``: sends of messages
    that are one node with their receive.
    """

    task: Task
    calls: Ints
    nodes: Ints
    from_s: Times
    course_of: Ints
    begin_after_s: Times
    end_after_s: Times
    wired: bool

    @property
    def starts_s(self) -> Times:
        """Return when each op of each call began: calls x ops, in an array of its own."""
        return self._of_calls(self.begin_after_s)

    @property
    def ends_s(self) -> Times:
        """Return when each op of each call ended."""
        return self._of_calls(self.end_after_s)

    def starts_of(self, ops: Ints | Sequence[int]) -> Times:
        """Return when some ops of each call began: calls x ops."""
        return self._of_calls(self.begin_after_s.take(ops, axis=1))

    def ends_of(self, ops: Ints | Sequence[int]) -> Times:
        """Return when some ops of each call ended."""
        return self._of_calls(self.end_after_s.take(ops, axis=1))

    @property
    def first_s(self) -> Times:
        """Return when each call began its first op."""
        return self._best_of_calls(np.min, self.begin_after_s)

    @property
    def last_s(self) -> Times:
        """Return when each call ended its last op."""
        return self._best_of_calls(np.max, self.end_after_s)

    def at_rows(self, rows: slice | Ints) -> "TaskTimes":
        """Return those of the calls at some places."""
        calls, nodes, from_s, course_of = (
            column[rows] for column in (self.calls, self.nodes, self.from_s, self.course_of)
        )
        return replace(self, calls=calls, nodes=nodes, from_s=from_s, course_of=course_of)

    def _of_calls(self, after_s: Times) -> Times:
        """Return moments of calls from those of courses."""
        found: Times = after_s.take(self.course_of, axis=0)
        found += self.from_s[:, None]
        return found

    def _best_of_calls(self, best: Callable[..., Times], after_s: Times) -> Times:
        """Return the least or the largest moment of each call; some calls may have but few of the courses."""
        if len(after_s) > len(self.course_of):
            return best(self._of_calls(after_s), axis=1)
        return best(after_s, axis=1)[self.course_of] + self.from_s


class TimesOfRanks(Struct, frozen=True, eq=False, dict=True):
    """All calls of one task of several ranks, one rank's after the other's: ``ranks[k]`` has ``num_calls[k]`` of them.

    for rank, times in found.of_each():
        print(rank, times.first_s.min())
    """

    ranks: tuple[int, ...]
    num_calls: Ints
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
        return float(self.times.first_s.min())

    @property
    def begins_s(self) -> Times:
        """Return when the first op of each rank begins."""
        begins_s: Times = np.minimum.reduceat(self.times.first_s, self.begins)
        return begins_s

    @property
    def ends_s(self) -> Times:
        """Return when the last op of each rank ends."""
        ends_s: Times = np.maximum.reduceat(self.times.last_s, self.begins)
        return ends_s

    @cached_property
    def begins(self) -> Ints:
        """Return the place of each rank's first call."""
        return np.cumsum(self.num_calls) - self.num_calls

    def of_each(self) -> Iterator[tuple[int, TaskTimes]]:
        """Yield the times of each rank; they are not copied."""
        found = self.times
        for rank, begin, count in zip(self.ranks, self.begins.tolist(), self.num_calls.tolist(), strict=True):
            yield rank, found.at_rows(slice(begin, begin + count))

    def seconds(self, counts: Ints) -> Times:
        """Return how long every rank is at each op, each call counted so many times: ranks x ops."""
        times, is_new = self.times, run_begins(self.times.course_of)
        is_new[self.begins] = True
        rows = np.flatnonzero(is_new)  # each with the calls after it that take the same course
        courses = times.course_of[rows]
        of_rows_s = times.end_after_s.take(courses, axis=0)
        of_rows_s -= times.begin_after_s.take(courses, axis=0)
        of_rows_s *= np.add.reduceat(counts, rows)[:, None]
        seconds: Times = np.add.reduceat(of_rows_s, rows.searchsorted(self.begins))
        return seconds

    def seconds_in(self, parts: Sequence[Part]) -> Times:
        """Return how long every rank is at each op in parts of time, as often as these happen: ranks x ops.

        The parts follow each other. Few calls are cut where they begin or end, or run in one that happens more than
        once.
        """
        first_s, last_s = self.times.first_s, self.times.last_s
        begin_s, end_s = parts[0].begin_s, parts[-1].end_s
        is_inside = (first_s >= begin_s) & (last_s <= end_s)
        seconds = self.seconds(is_inside.astype(np.int64))
        self._add_inside(seconds, ~is_inside, (begin_s, end_s), 1)
        for part in parts:
            if part.times > 1:
                runs = (last_s > part.begin_s) & (first_s < part.end_s)
                self._add_inside(seconds, runs, (part.begin_s, part.end_s), part.times - 1)
        return seconds

    def _add_inside(self, seconds: Times, chosen: NDArray[np.bool_], bounds_s: tuple[float, float], times: int) -> None:
        """Add how long ranks are at each op of some calls between two moments, so many times."""
        rows = np.flatnonzero(chosen)
        if len(rows):
            some = self.times.at_rows(rows)
            place_of = self.begins.searchsorted(rows, "right") - 1
            np.add.at(seconds, place_of, times * _inside_s(some.starts_s, some.ends_s, *bounds_s))

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
        """Return the same with each rank's calls counted from its first, and times from a moment."""
        found = self.times
        calls = found.calls - np.repeat([first[rank] for rank in self.ranks], self.num_calls)
        return replace(self, times=replace(found, calls=calls, from_s=found.from_s - begin_s))


def _inside_s(starts_s: Times, ends_s: Times, begin_s: float, end_s: float) -> Times:
    """Return how long spans are in a part of time."""
    inside_s = np.minimum(ends_s, end_s)
    np.maximum(inside_s, begin_s, out=inside_s)
    found: Times = np.subtract(inside_s, np.minimum(np.maximum(starts_s, begin_s), end_s), out=inside_s)
    return found
