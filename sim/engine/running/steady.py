"""Finding the period of a run: equal states, and equal calls to come.

What is under way at one moment is under way again a period later, with equally much left to do: every rank and stream
has begun as many more calls as a period has, and all that begins or lasts within the two moments repeats, to rounding,
what is a period away. From equal states follow equal futures, so long as the calls to come are equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.period import EQUAL, Times
from sim.engine.running.rank_paces import RankPaces
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TaskTimes
from sim.plan.facts.repetition import Repetition

IN_A_PERIOD: Final = (1, 2, 3, 4, 6)
"""Largest number of repetitions in a period: messages and buckets may come around less often than calls."""

MOST_APART: Final = 4
"""Calls a period apart that are noted: they tell whether other durations come back after two periods alone."""


class Steady(NamedTuple):
    """A period of a run: from when to when, and how many repetitions of the calls it has.

    ``apart``: by simulated rank, calls of one task that are a period apart from one to the next, the last such.
    """

    begin_s: float
    end_s: float
    repetitions: int
    apart: Mapping[int, tuple[int, ...]]


def steady_period(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> Steady | None:
    """Return a period in which every rank makes all repeated calls and whose state comes back; None: there is none.

    ``repetition_of``: what repeats in the programs of the run, by simulated rank.
    """
    once = [rows for rank in run.programs for rows in _rows(run, rank, repetition_of[rank])]
    for repetitions in IN_A_PERIOD:
        tasks = [replace(rows, count=repetitions * rows.count) for rows in once]
        for length_s in _lengths_s(tasks):
            begin_s = _begin_s(tasks, length_s)
            if begin_s is not None and all(_repeats(rows, begin_s, begin_s + length_s) for rows in tasks):
                apart = {rank: _apart(tasks, rank, length_s) for rank in run.programs}
                return Steady(begin_s, begin_s + length_s, repetitions, apart)
    return None


def _apart(tasks: Sequence["_Rows"], rank: int, length_s: float) -> tuple[int, ...]:
    """Return the last calls that are a period apart, two or more: of the main line of work, if it has a part in it."""
    own = [rows for rows in tasks if rows.rank == rank and rows.count]
    rows = next((rows for rows in own if rows.main), own[0])
    last = int(np.flatnonzero(~_is_unlike(rows, length_s))[-1])
    first = max(rows.first, last - (MOST_APART - 1) * rows.count)
    return tuple(rows.calls[last : first - 1 if first else None : -rows.count].tolist()[::-1])


def drifts_apart(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> bool:
    """Return whether each rank repeats its calls evenly, but not all at one pace: no state of such a run comes back.

    Replicas that do not wait for each other within a step do so where one has a slow device.
    """
    paces_s = []
    for rank in run.programs:
        rows = next(rows for rows in _rows(run, rank, repetition_of[rank]) if rows.count)
        ends = rows.stop - 1 - rows.count * np.arange(3)
        if ends[-1] < rows.first:
            return False
        last_s, before_s = -np.diff(rows.starts_s[ends, 0])
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
    slack_s, starts_s = EQUAL * length_s, times.starts_s
    begun = [(starts_s < moment_s - slack_s).sum(axis=0) for moment_s in _around(begin_s, length_s)]
    if not all((later - earlier == count).all() for earlier, later in pairwise(begun)):
        return False
    early, late = slice(None, -count), slice(count, None)
    ends_s = times.ends_s[early], times.ends_s[late]
    return _are_alike((starts_s[early], starts_s[late]), ends_s, begin_s, length_s)


def _paces_come_back(own: RankPaces, begin_s: float, length_s: float) -> bool:
    """Return whether a rank's calls before a moment and those after it are alike, also those that were left out.

    Those of one call that are left out are alike if it is, and its pace is that of the call in the step after.
    """
    slack_s, ops, paces_s = EQUAL * length_s, own.ops, own.paces_s
    early, late = own.a_step_apart
    is_first = ops.calls < len(own.shown)
    expected = np.bincount(ops.numbers[is_first], own.counts[is_first], len(ops.num_ops))
    begun = [_num_begun(own, moment_s - slack_s) for moment_s in _around(begin_s, length_s)]
    if not all((after - before == expected).all() for before, after in pairwise(begun)):
        return False
    if own.times * np.abs(paces_s[late] - paces_s[early]).max(initial=0.0) > slack_s:
        return False
    repeats = (paces_s[early] > 0.0) | (paces_s[late] > 0.0)
    first_s = [(times_s[early], times_s[late]) for times_s in (ops.starts_s, ops.ends_s)]
    early, late = early[repeats], late[repeats]
    more_s = own.times * paces_s[early], own.times * paces_s[late]
    last_s = [(times_s[early] + more_s[0], times_s[late] + more_s[1]) for times_s in (ops.starts_s, ops.ends_s)]
    return all(_are_alike(starts_s, ends_s, begin_s, length_s) for starts_s, ends_s in (first_s, last_s))


def _num_begun(own: RankPaces, moment_s: float) -> NDArray[np.int64]:
    """Return, by the number of an op, how often it has begun before a moment."""
    numbers, starts_s, repeats = own.ops.numbers, own.ops.starts_s, np.flatnonzero(own.paces_s > 0.0)
    more = np.clip(np.ceil((moment_s - starts_s[repeats]) / own.paces_s[repeats]) - 1, 0, own.times)
    begun = np.bincount(numbers[starts_s < moment_s], minlength=len(own.ops.num_ops))
    return begun + np.bincount(numbers[repeats], more, len(own.ops.num_ops)).astype(np.int64)


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


class _Rows(Struct, frozen=True):
    """The times of all calls of one task of one rank, x ops: of those that repeat, rows ``first`` to ``stop``.

    ``count``: how many calls of the task one period has. ``main``: the task is of the main line of work.
    """

    rank: int
    main: bool
    calls: NDArray[np.int64]
    starts_s: Times
    ends_s: Times
    first: int
    stop: int
    count: int


def _rows(run: SimulatedRun, rank: int, repetition: Repetition) -> Iterator[_Rows]:
    counts = repetition.of_task(run.programs[rank])
    for times in run.task_times(rank):
        first, stop = np.searchsorted(times.calls, (repetition.first, repetition.stop)).tolist()
        count, main = counts.get(times.task.name, 0), times.task.traits.coalesces
        yield _Rows(rank, main, times.calls, times.starts_s, times.ends_s, first, stop, count)


def _lengths_s(tasks: Sequence[_Rows]) -> list[float]:
    """Return how long a period may last: what is between calls of one task at the end, and halfway."""
    for rows in tasks:
        if rows.count and rows.stop - rows.first > rows.count:
            last, halfway = rows.stop - 1, (rows.first + rows.count + rows.stop) // 2
            found = [float(rows.starts_s[at, 0] - rows.starts_s[at - rows.count, 0]) for at in (last, halfway)]
            return [length_s for length_s in dict.fromkeys(found) if length_s > 0.0]
    return []


def _begin_s(tasks: Sequence[_Rows], length_s: float) -> float | None:
    """Return the begin of the first stretch as long as a period in which only repeated calls run."""
    unlike = [_unlike(rows, length_s) for rows in tasks]
    starts_s, ends_s = (np.concatenate(times) for times in zip(*unlike, strict=True))
    order = np.argsort(starts_s, kind="stable")
    starts_s, ends_s = starts_s[order], np.maximum.accumulate(ends_s[order])
    long_enough = np.flatnonzero(starts_s[1:] - ends_s[:-1] >= (1.0 - EQUAL) * length_s)
    return float(ends_s[long_enough[0]]) if len(long_enough) else None


def _unlike(rows: _Rows, length_s: float) -> tuple[Times, Times]:
    """Return when the calls begin and end that do not repeat the one a period before."""
    unlike = _is_unlike(rows, length_s)
    return rows.starts_s[unlike].min(axis=1), rows.ends_s[unlike].max(axis=1)


def _is_unlike(rows: _Rows, length_s: float) -> NDArray[np.bool_]:
    """Return which calls do not repeat the one a period before."""
    unlike = np.ones(len(rows.starts_s), dtype=np.bool_)
    if rows.count and rows.stop - rows.first > rows.count:
        early, late = slice(rows.first, rows.stop - rows.count), slice(rows.first + rows.count, rows.stop)
        off_s = [np.abs(times[late] - times[early] - length_s).max(axis=1) for times in (rows.starts_s, rows.ends_s)]
        unlike[late] = np.maximum(*off_s) > EQUAL * length_s
    return unlike


def _repeats(rows: _Rows, begin_s: float, end_s: float) -> bool:
    """Return whether of every op as many calls begin between two moments as a period has."""
    slack_s = EQUAL * (end_s - begin_s)
    begun = [(rows.starts_s < moment_s - slack_s).sum(axis=0) for moment_s in (begin_s, end_s)]
    return bool((begun[1] - begun[0] == rows.count).all())
