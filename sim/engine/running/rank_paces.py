"""The times of one rank of a run in which ranks have paces of their own (see paced).

The clock of a rank's compute stream stands still while periods are left out. By this clock all that repeats at the pace
of its computing is as in a run that passes through its period once. What goes at another pace, such as messages that a
faster neighbour sends ahead, has a place in the time of the whole step alone.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.period import Part, Times
from sim.engine.running.task_times import OpTimes, TaskTimes

NEAR: Final = 1e-9
"""Paces and moments that differ by a smaller part of a pace are equal."""

NO_PERIOD: Final = -1

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class UnlikeError(Exception):
    """What repeats in a section cannot be told apart from what does not: ask the run of all micro-batches."""


class RankPaces(Struct, dict=True, eq=False):
    """The tasks of a rank in a run, with real times; ``repeated``: from call to call, the period of each section.

    ``shown``: the calls of the step that is shown, of several in a row. What is said of ops is in the order of ``ops``.
    """

    tasks: Sequence[TaskTimes]
    repeated: Sequence[tuple[int, int]]
    times: int
    shown: range

    @cached_property
    def ops(self) -> OpTimes:
        """Return the times of all ops."""
        return OpTimes.of(self.tasks)

    # --- what ops stand for --------------------------------------------------------------------------------

    @cached_property
    def period_of(self) -> Ints:
        """Return the section to whose period each op belongs; NO_PERIOD: to none."""
        of_call = np.full(int(self.ops.calls.max(initial=-1)) + 1, NO_PERIOD)
        for section, (first, stop) in enumerate(self.repeated):
            of_call[first:stop] = section
        found: Ints = of_call[self.ops.calls]
        return found

    @cached_property
    def counts(self) -> Ints:
        """Return how many ops of the whole step each op stands for."""
        return np.where(self.period_of == NO_PERIOD, 1, 1 + self.times)

    @property
    def counts_shown(self) -> Ints:
        """Return how many ops of the step that is shown each op stands for."""
        calls = self.ops.calls
        return np.where((calls >= self.shown.start) & (calls < self.shown.stop), self.counts, 0)

    @cached_property
    def _repeated_ops(self) -> tuple[Ints, Ints]:
        """Return the places of the ops that repeat, and of those a period before them."""
        places, ops = np.flatnonzero(self.period_of != NO_PERIOD), self.ops
        keys = ops.numbers[places] * len(self.repeated) + self.period_of[places]
        in_a_period = np.bincount(keys, minlength=1)[keys]
        return places, places - in_a_period * ops.num_ops[ops.numbers[places]]

    @cached_property
    def paces_s(self) -> Times:
        """Return the pace of every op that repeats, 0 for others."""
        found, (places, before) = np.zeros(len(self.ops.ends_s)), self._repeated_ops
        found[places] = self.ops.ends_s[places] - self.ops.ends_s[before]
        return found

    def counts_of(self, task: TaskTimes) -> Ints:
        """Return how many calls of the whole step each call of one of the tasks stands for."""
        return self.counts[self._places[task.task.name]].reshape(len(task.calls), -1)[:, 0]

    def paces_of(self, task: TaskTimes) -> Times:
        """Return the paces of the ops of one of the tasks (calls x ops)."""
        return self.paces_s[self._places[task.task.name]].reshape(task.ends_s.shape)

    @cached_property
    def _places(self) -> Mapping[str, slice]:
        """Return the places of each task's ops."""
        stops = accumulate(task.ends_s.size for task in self.tasks)
        return {
            task.task.name: slice(stop - task.ends_s.size, stop) for task, stop in zip(self.tasks, stops, strict=True)
        }

    @property
    def last_end_s(self) -> float:
        """Return when the last op ends in the whole step."""
        return float((self.ops.ends_s + self.times * self.paces_s).max())

    def unrolled(self, places: Ints) -> tuple[Times, Times]:
        """Return starts and ends of some ops in the whole step, in no order."""
        counts = self.counts[places]
        every = np.repeat(places, counts)
        passes = np.arange(len(every)) - np.repeat(np.cumsum(counts) - counts, counts)
        later_s = passes * self.paces_s[every]
        return self.ops.starts_s[every] + later_s, self.ops.ends_s[every] + later_s

    def a_step_apart(self, stop: int) -> tuple[Ints, Ints]:
        """Return the places of the ops of calls before one, and of the same ones a step later."""
        is_first = self.ops.calls < len(self.shown)
        in_a_step = self._often(np.flatnonzero(is_first)) * self.ops.num_ops
        early = np.flatnonzero(self.ops.calls < stop)
        return early, early + in_a_step[self.ops.numbers[early]]

    # --- by the clock of the compute stream ----------------------------------------------------------------

    @cached_property
    def by_own_clock(self) -> tuple[Times, Times]:
        """Return the starts and ends of ops by the clock of the compute stream."""
        stops, (_, paces_s) = [stop for _, stop in self.repeated], self._periods
        late_s = np.append(0.0, np.cumsum(self.times * paces_s))[np.searchsorted(stops, self.ops.calls, side="right")]
        return self.ops.starts_s - late_s, self.ops.ends_s - late_s

    def parts(self, step: Part) -> tuple[Part, ...]:
        """Return the parts of the whole step that is shown, by the clock of the compute stream.

        ``step``: when it begins, and how long it lasts. Raises UnlikeError where a part that is to repeat does not
        begin and end in equal states.
        """
        found, now_s = list[Part](), step.begin_s - self.left_out_s(range(self.shown.start))
        until_s = now_s + step.length_s - self.left_out_s(self.shown)
        for section, (begin_s, pace_s) in enumerate(zip(*self._periods, strict=True)):
            if self.repeated[section][0] not in self.shown:
                continue
            if begin_s < now_s:
                raise UnlikeError
            found += [Part(now_s, float(begin_s - now_s)), Part(float(begin_s), float(pace_s), 1 + self.times)]
            now_s = float(begin_s + pace_s)
        return (*found, Part(now_s, until_s - now_s))

    def left_out_s(self, calls: range) -> float:
        """Return how long the clock of the compute stream stands still in the sections that begin among some calls."""
        is_among = [first in calls for first, _ in self.repeated]
        return self.times * float(self._periods[1][is_among].sum())

    @cached_property
    def _periods(self) -> tuple[Times, Times]:
        """Return when the last but one period of each section begins by the own clock, and how long it lasts."""
        places, before = self._repeated_ops
        is_main = self._is_main[self.ops.numbers[places]]
        sections, paces_s = self.period_of[places][is_main], self.paces_s[places][is_main]
        begins_s, shortest_s, longest_s = (np.full(len(self.repeated), fill) for fill in (np.inf, np.inf, 0.0))
        np.minimum.at(begins_s, sections, self.ops.starts_s[before][is_main])
        np.minimum.at(shortest_s, sections, paces_s)
        np.maximum.at(longest_s, sections, paces_s)
        if (longest_s - shortest_s > NEAR * longest_s).any():
            raise UnlikeError
        begins_s[np.isinf(begins_s)] = 0.0
        late_s = np.cumsum(self.times * longest_s) - self.times * longest_s
        return begins_s - late_s, longest_s

    @property
    def _is_main(self) -> Flags:
        """Return, by the number of an op, whether it is on the compute stream."""
        return np.array([op.stream == MAIN_STREAM for task in self.tasks for op in task.task.ops], np.bool_)

    @cached_property
    def at_own_pace(self) -> Flags:
        """Return which ops repeat at the pace of computing, in every section, and do not meet it otherwise."""
        (places, _), (begins_s, paces_s), numbers = self._repeated_ops, self._periods, self.ops.numbers
        expected_s = paces_s[self.period_of[places]]
        unlike = places[np.abs(self.paces_s[places] - expected_s) > NEAR * expected_s]
        own: Flags = self._often(unlike) == 0
        for section, period in enumerate(self.repeated):
            if period[0] in self.shown:
                own &= self._repeats_alone(section, float(begins_s[section]), float(paces_s[section]))
        return own[numbers]

    def _repeats_alone(self, section: int, begin_s: float, pace_s: float) -> Flags:
        """Return, by number, of which ops those that run in all periods are those that repeat, each once.

        Calls before the period are over when it begins, and later ones begin after the last.
        """
        (first, stop), near_s, calls = self.repeated[section], NEAR * pace_s, self.ops.calls
        starts_s, ends_s = self.by_own_clock
        is_before_end = starts_s < begin_s + pace_s - near_s
        meets = np.where(calls < stop, ends_s > begin_s + near_s, is_before_end)
        repeats = (calls >= first - 2 * (stop - first)) & (calls < stop)
        begun = self._often(np.flatnonzero((starts_s >= begin_s - near_s) & is_before_end))
        once = self._often(np.flatnonzero(self.period_of == section))
        found: Flags = (self._often(np.flatnonzero(meets & ~repeats)) == 0) & (begun == once)
        return found

    def _often(self, places: Ints) -> Ints:
        """Return, by number, how often an op is among those at some places."""
        return np.bincount(self.ops.numbers[places], minlength=len(self.ops.num_ops))
