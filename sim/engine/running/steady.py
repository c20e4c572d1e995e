"""Finding the period of a run: equal states, and equal calls to come.

What is under way at one moment is under way again a period later, with equally much left to do: every rank and stream
has begun as many more calls as a period has, and all that begins or lasts within the two moments repeats, to rounding,
what is a period away. From equal states follow equal futures, so long as the calls to come are equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.period import EQUAL, Times
from sim.engine.running.rank_paces import RankPaces
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TaskTimes, TimesOfRanks
from sim.plan.facts.repetition import Repetition
from sim.plan.words.program import Task
from sim.sorting import distinct_values

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

IN_A_PERIOD: Final = (1, 2, 3, 4, 6)
"""Largest number of repetitions in a period: messages and buckets may come around less often than calls."""


class Steady(Struct, frozen=True):
    """A period of a run: from when to when, and how many repetitions of the calls it has."""

    begin_s: float
    end_s: float
    repetitions: int


def steady_period(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> Steady | None:
    """Return a period in which every rank makes all repeated calls and whose state comes back; None: there is none.

    ``repetition_of``: what repeats in the programs of the run, by simulated rank.
    """
    once = list(_rows(run, repetition_of))
    for repetitions in IN_A_PERIOD:
        tasks = [replace(rows, counts=repetitions * rows.counts) for rows in once]
        for length_s in _lengths_s(tasks):
            unlike = [_is_unlike(rows, length_s) for rows in tasks]
            begin_s = _begin_s(tasks, unlike, length_s)
            if begin_s is not None and all(_repeats(rows, begin_s, begin_s + length_s) for rows in tasks):
                return Steady(begin_s, begin_s + length_s, repetitions)
    return None


def drifts_apart(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> bool:
    """Return whether each rank repeats its calls evenly, but not all at one pace: no state of such a run comes back.

    Replicas that do not wait for each other within a step do so where one has a slow device.
    """
    paces_s = []
    for rank, program in run.programs.items():
        repetition, counts = repetition_of[rank], repetition_of[rank].of_task(program)
        times = next(times for times in run.task_times(rank) if times.task.name in counts)
        first, stop = np.searchsorted(times.calls, (repetition.first, repetition.stop)).tolist()
        ends = stop - 1 - counts[times.task.name] * np.arange(3)
        if ends[-1] < first:
            return False
        last_s, before_s = -np.diff(times.at_rows(ends).starts_of([0]).ravel())
        if abs(last_s - before_s) > EQUAL * last_s:
            return False
        paces_s.append(last_s)
    return bool(max(paces_s) - min(paces_s) > 1e-6 * max(paces_s))


def comes_back(run: SimulatedRun) -> bool:
    """Return whether the state of several steps in a row is a period later what it was, before the last step begins.

    All that begins in the period before the last step's first op begins again in the one after it, and ends equally
    late; and of every op as many have begun as a step has. Further steps are then alike.
    """
    *_, before_s, last_s = (run.loop.starts_s[node] for node in run.first_nodes)
    begin_s, length_s = run.last_step_begin_s, last_s - before_s
    if length_s <= 0.0:
        return False
    if run.paced is None:
        tasks = (times for rank in run.programs for times in run.window(rank)[0])
        return all(_comes_back(times, len(times.calls) // run.num_steps, begin_s, length_s) for times in tasks)
    return all(_paces_come_back(run.paces_in_a_row(rank), begin_s, length_s) for rank in run.programs)


def _comes_back(times: TaskTimes, count: int, begin_s: float, length_s: float) -> bool:
    """Return whether the ``count`` calls before a moment and those after it are alike, a period apart."""
    slack_s, starts_s, all_ends_s = EQUAL * length_s, times.starts_s, times.ends_s
    begun = [(starts_s < moment_s - slack_s).sum(axis=0) for moment_s in _around(begin_s, length_s)]
    if not all((later - earlier == count).all() for earlier, later in pairwise(begun)):
        return False
    early, late = slice(None, -count), slice(count, None)
    ends_s = all_ends_s[early], all_ends_s[late]
    return _are_alike((starts_s[early], starts_s[late]), ends_s, begin_s, length_s)


def _paces_come_back(own: RankPaces, begin_s: float, length_s: float) -> bool:
    """Return whether a rank's calls before a moment and those after it are alike, also those that were left out.

    Those of one call that are left out are alike if it is, and its pace is that of the call in the step after.
    """
    slack_s, layout, paces_s = EQUAL * length_s, own.layout, own.paces_s
    early, late = layout.a_step_apart(layout.shown.stop)
    is_first = layout.calls < len(layout.shown)
    expected = np.bincount(layout.numbers[is_first], layout.counts[is_first], len(layout.num_ops))
    begun = [_num_begun(own, moment_s - slack_s) for moment_s in _around(begin_s, length_s)]
    if not all((after - before == expected).all() for before, after in pairwise(begun)):
        return False
    if layout.times * np.abs(paces_s[late] - paces_s[early]).max(initial=0.0) > slack_s:
        return False
    repeats = (paces_s[early] > 0.0) | (paces_s[late] > 0.0)
    first_s = [(times_s[early], times_s[late]) for times_s in (own.starts_s, own.ends_s)]
    early, late = early[repeats], late[repeats]
    more_s = layout.times * paces_s[early], layout.times * paces_s[late]
    last_s = [(times_s[early] + more_s[0], times_s[late] + more_s[1]) for times_s in (own.starts_s, own.ends_s)]
    return all(_are_alike(starts_s, ends_s, begin_s, length_s) for starts_s, ends_s in (first_s, last_s))


def _num_begun(own: RankPaces, moment_s: float) -> NDArray[np.int64]:
    """Return, by the number of an op, how often it has begun before a moment."""
    layout, starts_s, repeats = own.layout, own.starts_s, np.flatnonzero(own.paces_s > 0.0)
    more = np.clip(np.ceil((moment_s - starts_s[repeats]) / own.paces_s[repeats]) - 1, 0, layout.times)
    begun = layout.often(np.flatnonzero(starts_s < moment_s))
    return begun + np.bincount(layout.numbers[repeats], more, len(layout.num_ops)).astype(np.int64)


def _are_alike(starts_s: tuple[Times, Times], ends_s: tuple[Times, Times], begin_s: float, length_s: float) -> bool:
    """Return whether ops that begin or last in a period before a moment are those a step later, a period apart.

    ``starts_s``, ``ends_s``: theirs, and those a step later.
    """
    (early_s, late_s), (early_ends_s, late_ends_s) = starts_s, ends_s
    slack_s, open_s = EQUAL * length_s, begin_s - length_s
    is_begun = early_s < begin_s - slack_s
    inside, lasting = (early_s >= open_s - slack_s) & is_begun, (early_ends_s > open_s + slack_s) & is_begun
    off_s = [
        np.abs(late_s - early_s - length_s)[inside].max(initial=0.0),
        np.abs(late_ends_s - early_ends_s - length_s)[lasting].max(initial=0.0),
    ]
    return bool(max(off_s) <= slack_s)


def _around(moment_s: float, length_s: float) -> tuple[float, float, float]:
    return moment_s - length_s, moment_s, moment_s + length_s


class _Rows(Struct, frozen=True, eq=False):
    """The times of all calls of a task: of those of rank k that repeat, rows ``first[k]`` to ``stop[k]``.

    ``counts[k]``: how many of its calls one period has.
    """

    together: TimesOfRanks
    first: Ints
    stop: Ints
    counts: Ints

    @property
    def task(self) -> Task:
        """Return the task."""
        return self.together.times.task

    @property
    def repeated(self) -> Ints:
        """Return by rank how many calls repeat one a period before."""
        return np.where(self.counts, np.maximum(self.stop - self.first - self.counts, 0), 0)


def _rows(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> Iterator[_Rows]:
    counts_of = {rank: repetition.of_task(run.programs[rank]) for rank, repetition in repetition_of.items()}
    for together in run.times_together():
        name, begins = together.times.task.name, together.begins
        edges = np.array([(repetition_of[rank].first, repetition_of[rank].stop) for rank in together.ranks])
        before = together.times.calls[:, None] < np.repeat(edges, together.num_calls, axis=0)
        first, stop = begins + np.add.reduceat(before, begins, dtype=np.int64).T
        yield _Rows(together, first, stop, np.array([counts_of[rank].get(name, 0) for rank in together.ranks]))


def _lengths_s(tasks: Sequence[_Rows]) -> list[float]:
    """Return how long a period may last: what is between calls of one task at the end, and halfway."""
    for rows in tasks:
        for place in np.flatnonzero(rows.repeated).tolist()[:1]:
            first, stop, count = (int(column[place]) for column in (rows.first, rows.stop, rows.counts))
            starts_s = rows.together.times.starts_of([0]).ravel()
            found = [float(starts_s[at] - starts_s[at - count]) for at in (stop - 1, (first + count + stop) // 2)]
            return [length_s for length_s in dict.fromkeys(found) if length_s > 0.0]
    return []


def _begin_s(tasks: Sequence[_Rows], unlike: Sequence[Flags], length_s: float) -> float | None:
    """Return the begin of the first stretch as long as a period in which only repeated calls run."""
    times = [(rows.together.times, of_rows) for rows, of_rows in zip(tasks, unlike, strict=True)]
    starts_s = np.concatenate([found.first_s[rows] for found, rows in times])
    ends_s = np.concatenate([found.last_s[rows] for found, rows in times])
    order = np.argsort(starts_s, kind="stable")
    starts_s, ends_s = starts_s[order], np.maximum.accumulate(ends_s[order])
    long_enough = np.flatnonzero(starts_s[1:] - ends_s[:-1] >= (1.0 - EQUAL) * length_s)
    return float(ends_s[long_enough[0]]) if len(long_enough) else None


def _is_unlike(rows: _Rows, length_s: float) -> Flags:
    """Return which calls do not repeat the one a period before."""
    times, repeated = rows.together.times, rows.repeated
    unlike = np.ones(len(times.calls), dtype=np.bool_)
    for count in distinct_values(rows.counts[repeated > 0]).tolist():
        own = np.flatnonzero(rows.counts == count)
        late = np.repeat(rows.first[own] + count - np.cumsum(repeated[own]) + repeated[own], repeated[own])
        late += np.arange(len(late))
        unlike[late] = _off_s(times, late - count, late, length_s) > EQUAL * length_s
    return unlike


def _off_s(times: TaskTimes, early: Ints, late: Ints, length_s: float) -> Times:
    """Return by how much at most the ops of late calls are not a period after those of early ones.

    Where both take the same course all their ops are equally far apart.
    """
    off_s: Times = np.abs(times.from_s[late] - times.from_s[early] - length_s)
    differ = np.flatnonzero(times.course_of[late] != times.course_of[early])
    if len(differ):
        before, after = times.at_rows(early[differ]), times.at_rows(late[differ])
        apart_s = after.starts_s - before.starts_s, after.ends_s - before.ends_s
        off_s[differ] = np.maximum(*(np.abs(each_s - length_s).max(axis=1) for each_s in apart_s))
    return off_s


def _repeats(rows: _Rows, begin_s: float, end_s: float) -> bool:
    """Return whether of every op as many calls begin between two moments as a period has, on every rank."""
    times, begins, slack_s = rows.together.times, rows.together.begins, EQUAL * (end_s - begin_s)
    first_s, last_s, bounds_s = times.first_s, times.last_s, (begin_s - slack_s, end_s - slack_s)
    is_inside = (first_s >= bounds_s[0]) & (last_s < bounds_s[1])
    begun = np.add.reduceat(is_inside, begins, dtype=np.int64)[:, None].repeat(len(rows.task.ops), axis=1)
    cut = np.flatnonzero(~is_inside & (last_s >= bounds_s[0]) & (first_s < bounds_s[1]))
    starts_s = times.at_rows(cut).starts_s
    np.add.at(begun, begins.searchsorted(cut, "right") - 1, (starts_s >= bounds_s[0]) & (starts_s < bounds_s[1]))
    return bool((begun == rows.counts[:, None]).all())
