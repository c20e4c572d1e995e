"""The times of one rank of a run in which ranks have paces of their own (see paced).

The clock of a rank's compute stream stands still while periods are left out. By this clock all that repeats at the pace
of its computing is as in a run that passes through its period once. What goes at another pace, such as messages that a
faster neighbour sends ahead, has a place in the time of the whole step alone.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.paced import Paced
from sim.engine.running.period import Part, Times
from sim.engine.running.task_times import TaskTimes

NEAR: Final = 1e-9
"""Paces and moments that differ by a smaller part of a pace are equal."""


class UnlikeError(Exception):
    """What repeats in a section cannot be told apart from what does not: ask the run of all micro-batches."""


class RankPaces(Struct, dict=True, eq=False):
    """The tasks of a rank in a run, with real times; ``repeated``: from call to call, the period of each section."""

    tasks: Sequence[TaskTimes]
    repeated: Sequence[tuple[int, int]]
    times: int

    @classmethod
    def of(cls, rank: int, tasks: Sequence[TaskTimes], paced: Paced) -> "RankPaces":
        """Return those of a simulated rank."""
        return cls(tasks, paced.repeated[rank], paced.times)

    def counts(self, task: TaskTimes) -> NDArray[np.int64]:
        """Return how many calls of the step each call of a task stands for."""
        found = np.ones(len(task.calls), np.int64)
        for first, stop in self.repeated:
            found[(task.calls >= first) & (task.calls < stop)] += self.times
        return found

    def paces_s(self, task: TaskTimes) -> Times:
        """Return the pace of every op of the calls that repeat, 0 for other calls (calls x ops)."""
        found = np.zeros_like(task.ends_s)
        for first, stop in self.repeated:
            rows = np.flatnonzero((task.calls >= first) & (task.calls < stop))
            found[rows] = task.ends_s[rows] - task.ends_s[rows - len(rows)]
        return found

    @property
    def last_ends_s(self) -> list[float]:
        """Return when the last call of each task ends in the whole step."""
        return [float((task.ends_s + self.times * self.paces_s(task)).max()) for task in self.tasks]

    def unrolled(self, task: TaskTimes, ops: Sequence[int]) -> tuple[Times, Times]:
        """Return starts and ends of some ops of a task in the whole step, in no order."""
        counts, paces_s = self.counts(task), self.paces_s(task)[:, ops]
        rows = np.repeat(np.arange(len(counts)), counts)
        passes = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        later_s = passes[:, None] * paces_s[rows]
        return (task.starts_s[:, ops][rows] + later_s).ravel(), (task.ends_s[:, ops][rows] + later_s).ravel()

    @cached_property
    def by_own_clock(self) -> Sequence[TaskTimes]:
        """Return the tasks with times by the clock of the compute stream."""
        return [self._by_own_clock(task) for task in self.tasks]

    def _by_own_clock(self, task: TaskTimes) -> TaskTimes:
        late_s = np.zeros((len(task.calls), 1))
        for (_, stop), (_, pace_s) in zip(self.repeated, self._periods, strict=True):
            late_s[task.calls >= stop] += self.times * pace_s
        return replace(task, starts_s=task.starts_s - late_s, ends_s=task.ends_s - late_s)

    def parts(self, until_s: float) -> tuple[Part, ...]:
        """Return the parts of a whole step that lasts so long, by the clock of the compute stream.

        Raises UnlikeError where a part that is to repeat does not begin and end in equal states.
        """
        found, now_s = list[Part](), 0.0
        for section, (begin_s, pace_s) in enumerate(self._periods):
            self._check(section, begin_s, pace_s)
            if begin_s < now_s:
                raise UnlikeError
            found += [Part(now_s, begin_s - now_s), Part(begin_s, pace_s, 1 + self.times)]
            now_s = begin_s + pace_s
        left_out_s = self.times * sum(pace_s for _, pace_s in self._periods)
        return (*found, Part(now_s, until_s - left_out_s - now_s))

    @cached_property
    def _periods(self) -> list[tuple[float, float]]:
        """Return when the last but one period of each section begins by the own clock, and how long it lasts."""
        found, late_s = list[tuple[float, float]](), 0.0
        for first, stop in self.repeated:
            begins_s, paces_s = [], []
            for task, rows, op in self._computing(first, stop):
                begins_s.append(float(task.starts_s[rows - len(rows), op].min()))
                paces_s.append(task.ends_s[rows, op] - task.ends_s[rows - len(rows), op])
            paces = np.concatenate(paces_s) if paces_s else np.zeros(1)
            if np.ptp(paces) > NEAR * paces.max():
                raise UnlikeError
            found.append((min(begins_s, default=0.0) - late_s, float(paces.max())))
            late_s += self.times * float(paces.max())
        return found

    def _computing(self, first: int, stop: int) -> Iterator[tuple[TaskTimes, NDArray[np.int64], int]]:
        """Yield tasks, their calls from ``first`` to ``stop`` and their ops on the compute stream."""
        for task in self.tasks:
            rows = np.flatnonzero((task.calls >= first) & (task.calls < stop))
            for op, found in enumerate(task.task.ops):
                if len(rows) and found.stream == MAIN_STREAM:
                    yield task, rows, op

    def at_own_pace(self, task: TaskTimes) -> NDArray[np.bool_]:
        """Return which ops of a task repeat at the pace of computing, in every section."""
        own: NDArray[np.bool_] = np.ones(len(task.task.ops), np.bool_)
        paces_s = self.paces_s(task)
        for (first, stop), (_, pace_s) in zip(self.repeated, self._periods, strict=True):
            rows = (task.calls >= first) & (task.calls < stop)
            own &= (np.abs(paces_s[rows] - pace_s) <= NEAR * pace_s).all(axis=0)
        return own

    def _check(self, section: int, begin_s: float, pace_s: float) -> None:
        """Raise UnlikeError unless the ops at the own pace that run in all periods are those that repeat, each once.

        Calls before the period are over when it begins, and later ones begin after the last.
        """
        first, stop = self.repeated[section]
        num_calls, near_s = stop - first, NEAR * pace_s
        for real, task in zip(self.tasks, self.by_own_clock, strict=True):
            own = self.at_own_pace(real)
            starts_s, ends_s, calls = task.starts_s[:, own], task.ends_s[:, own], task.calls
            meets = np.where((calls < stop)[:, None], ends_s > begin_s + near_s, starts_s < begin_s + pace_s - near_s)
            repeats = (calls >= first - 2 * num_calls) & (calls < stop)
            begun = ((starts_s >= begin_s - near_s) & (starts_s < begin_s + pace_s - near_s)).sum(axis=0)
            if meets[~repeats].any() or (begun != np.count_nonzero((calls >= first) & (calls < stop))).any():
                raise UnlikeError
