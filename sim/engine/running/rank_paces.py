"""The times of one rank of a run in which ranks have paces of their own (see paced).

The clock of a rank's compute stream stands still while periods are left out. By this clock all that repeats at the pace
of its computing is as in a run that passes through its period once. What goes at another pace, such as messages that a
faster neighbour sends ahead, has a place in the time of the whole step alone.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.running.op_layout import OpLayout
from sim.engine.running.period import Part, Times
from sim.engine.running.task_times import TaskTimes
from sim.sorting import in_ranges

NEAR: Final = 1e-9
"""Paces and moments that differ by a smaller part of a pace are equal."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class UnlikeError(Exception):
    """What repeats in a section cannot be told apart from what does not: ask the run of all micro-batches."""


class RankPaces(Struct, dict=True, eq=False):
    """The tasks of a rank in a run, with real times. What is said of ops is in the order of ``layout``."""

    tasks: Sequence[TaskTimes]
    layout: OpLayout

    @cached_property
    def starts_s(self) -> Times:
        """Return when each op begins."""
        return np.concatenate([times.starts_s.ravel() for times in self.tasks])

    @cached_property
    def ends_s(self) -> Times:
        """Return when each op ends."""
        return np.concatenate([times.ends_s.ravel() for times in self.tasks])

    # --- what ops stand for --------------------------------------------------------------------------------

    @cached_property
    def paces_s(self) -> Times:
        """Return the pace of every op that repeats, 0 for others."""
        found, (places, before) = np.zeros(len(self.ends_s)), self.layout.repeated_ops
        found[places] = self.ends_s[places] - self.ends_s[before]
        return found

    def unrolled(self, places: Ints) -> tuple[Times, Times]:
        """Return starts and ends of some ops in the whole step, in no order."""
        counts = self.layout.counts[places]
        number, passes = in_ranges(np.zeros_like(counts), counts)
        every = places[number]
        later_s = passes * self.paces_s[every]
        return self.starts_s[every] + later_s, self.ends_s[every] + later_s

    def running_in(self, part: Part, places: Ints) -> Ints:
        """Return those of some ops that run in a part of the whole step, or may between their first and last time."""
        return places[(self._last_ends_s(places) > part.begin_s) & (self.starts_s[places] < part.end_s)]

    def computing_from(self, moment_s: float) -> Ints:
        """Return the places of the ops that count for the compute stream, which runs them in this order.

        Those of calls before the shown step are left out where they are over by a moment.
        """
        before, after = self.layout.computing
        is_over = bool((self._last_ends_s(before[-1:]) <= moment_s).all())
        return after if is_over else np.concatenate([before, after])

    def _last_ends_s(self, places: Ints) -> Times:
        """Return when the last of the times of some ops ends."""
        last_s: Times = self.ends_s[places] + (self.layout.counts[places] - 1) * self.paces_s[places]
        return last_s

    # --- by the clock of the compute stream ----------------------------------------------------------------

    def by_own_clock(self, places: Ints) -> tuple[Times, Times]:
        """Return the starts and ends of some ops by the clock of the compute stream."""
        late_s = self._late_s[self.layout.sections_over[places]]
        return self.starts_s[places] - late_s, self.ends_s[places] - late_s

    @cached_property
    def _late_s(self) -> Times:
        """Return how long the clock of the compute stream has stood still once so many sections are over."""
        _, paces_s = self._periods
        return np.append(0.0, np.cumsum(self.layout.times * paces_s))

    @cached_property
    def _by_own_clock_beside_main(self) -> tuple[Times, Times]:
        """Return the same of the ops on other streams than the compute stream."""
        return self.by_own_clock(self.layout.beside_main)

    def parts(self, step: Part) -> tuple[Part, ...]:
        """Return the parts of the whole step that is shown, by the clock of the compute stream.

        ``step``: when it begins, and how long it lasts. Raises UnlikeError where a part that is to repeat does not
        begin and end in equal states.
        """
        found, now_s = list[Part](), step.begin_s - self.left_out_s(range(self.layout.shown.start))
        until_s = now_s + step.length_s - self.left_out_s(self.layout.shown)
        for section, (begin_s, pace_s) in enumerate(zip(*self._periods, strict=True)):
            if self.layout.repeated[section][0] not in self.layout.shown:
                continue
            if begin_s < now_s:
                raise UnlikeError
            found += [Part(now_s, float(begin_s - now_s)), Part(float(begin_s), float(pace_s), 1 + self.layout.times)]
            now_s = float(begin_s + pace_s)
        return (*found, Part(now_s, until_s - now_s))

    def left_out_s(self, calls: range) -> float:
        """Return how long the clock of the compute stream stands still in the sections that begin among some calls."""
        is_among = [first in calls for first, _ in self.layout.repeated]
        return self.layout.times * float(self._periods[1][is_among].sum())

    @cached_property
    def _periods(self) -> tuple[Times, Times]:
        """Return when the last but one period of each section begins by the own clock, and how long it lasts."""
        layout, (sections, places, before) = self.layout, self.layout.repeated_main_ops
        paces_s = self.paces_s[places]
        begins_s, shortest_s, longest_s = (np.full(len(layout.repeated), fill) for fill in (np.inf, np.inf, 0.0))
        np.minimum.at(begins_s, sections, self.starts_s[before])
        np.minimum.at(shortest_s, sections, paces_s)
        np.maximum.at(longest_s, sections, paces_s)
        if (longest_s - shortest_s > NEAR * longest_s).any():
            raise UnlikeError
        begins_s[np.isinf(begins_s)] = 0.0
        late_s = np.cumsum(layout.times * longest_s) - layout.times * longest_s
        return begins_s - late_s, longest_s

    @cached_property
    def foreign_streams(self) -> set[str]:
        """Return for which streams ops count that repeat at another pace than computing, or meet it otherwise.

        Those on the compute stream do not: it runs its ops one after the other, and they have one pace (``_periods``).
        """
        layout, (places, _), (begins_s, paces_s) = self.layout, self.layout.repeated_ops, self._periods
        expected_s = paces_s[layout.period_of[places]]
        unlike = places[np.abs(self.paces_s[places] - expected_s) > NEAR * expected_s]
        own: Flags = layout.often(unlike) == 0
        for section, period in enumerate(layout.repeated):
            if period[0] in layout.shown:
                own &= self._repeats_alone(section, float(begins_s[section]), float(paces_s[section]))
        return {layout.streams[number] for number in np.flatnonzero(~own).tolist()}

    def _repeats_alone(self, section: int, begin_s: float, pace_s: float) -> Flags:
        """Return, by number, of which ops those that run in all periods are those that repeat, each once.

        Calls before the period are over when it begins, and later ones begin after the last.
        """
        layout, near_s, places = self.layout, NEAR * pace_s, self.layout.beside_main
        (starts_s, ends_s), (before, after) = self._by_own_clock_beside_main, layout.around_period(section)
        meets = (before & (ends_s > begin_s + near_s)) | (after & (starts_s < begin_s + pace_s - near_s))
        begun = (starts_s >= begin_s - near_s) & (starts_s < begin_s + pace_s - near_s)
        often_met, often_begun = layout.often(places[meets]), layout.often(places[begun])
        found: Flags = (often_met == 0) & (often_begun == layout.in_periods[section])
        return found
