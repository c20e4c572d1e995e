"""A last step of several that is only begun, and yet shows that the state comes back from step to step.

Of each rank it has as many calls as wait for none of the others. These are no matter where they would all begin later
than what is looked at: docs/design.md has the argument.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.running.op_layout import OpLayout
from sim.engine.running.period import EQUAL, Times
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TimesOfRanks

Ints = NDArray[np.int64]


def begins_again(run: SimulatedRun) -> bool:
    """Return whether the last step begins as the one before it did, after which as much was left as is now.

    The step before is over, and every rank has begun the last, before a call that was left out would begin.
    """
    *_, before_s, last_s = (run.loop.starts_s[node] for node in run.first_nodes)
    length_s = last_s - before_s
    if length_s <= 0.0:
        return False
    of_tasks = list(_calls(run))
    begins = [_begin(calls) for calls in of_tasks]
    made = [begin for begin in begins if begin.last[0].size]
    first_s = min(float(begin.last[0].min()) for begin in made)
    others_s = length_s + min([first_s, *(begin.next_s for begin in begins)])
    over_s = run.origin_s + max(run.last_ends_s.values())
    if others_s < max([over_s, *(run.paces_of_step(rank)[1].end_s for rank in run.programs)]):
        return False
    slack_s = EQUAL * length_s
    is_same = all(begin.is_same(length_s, others_s, slack_s) for begin in made)
    return is_same and all(_leave_as_much(calls, first_s, length_s, slack_s) for calls in of_tasks)


# --- the calls of ranks ------------------------------------------------------------------------------------


class _Calls(Struct, frozen=True, eq=False):
    """The calls of one task in all steps, by ranks that make equal ones: starts and ends, ranks x calls x ops.

    ``shown``: those of the step before the last. ``apart``: of those that stand for ``times`` more, how many calls
    before is the one a period earlier; 0: it stands for itself.
    """

    starts_s: Times
    ends_s: Times
    shown: range
    apart: Ints
    times: int

    def paces_s(self, ranks: Ints | slice, calls: Ints) -> Times:
        """Return how much later than the one before comes each call for which some stand; 0: they stand for none."""
        paces_s: Times = self.ends_s[ranks, calls] - self.ends_s[ranks, calls - self.apart[calls]]
        return paces_s

    @property
    def last_ends_s(self) -> Times:
        """Return when the last of those for which each call stands is over, ranks x calls."""
        last_s: Times = self.ends_s.max(axis=2)
        stands = np.flatnonzero(self.apart)
        later_s = self.times * self.paces_s(slice(None), stands)
        last_s[:, stands] = (self.ends_s[:, stands] + later_s).max(axis=2)
        return last_s


def _calls(run: SimulatedRun) -> Iterator[_Calls]:
    """Yield the calls of all tasks."""
    for found in run.times_in_a_row:
        alike: dict[int, list[int]] = {}
        layouts = list(map(run.layout_in_a_row, found.ranks))
        for place, layout in enumerate(layouts):
            alike.setdefault(id(layout), []).append(place)
        for places in alike.values():
            yield _calls_of(found.of_some(places), layouts[places[0]])


def _calls_of(found: TimesOfRanks, layout: OpLayout) -> _Calls:
    """Return the calls of a task by ranks with one layout."""
    numbers, task = found.times.calls[: found.num_calls[0]], found.times.task
    shape = len(found.ranks), len(numbers), len(task.ops)
    starts_s, ends_s = found.times.starts_s.reshape(shape), found.times.ends_s.reshape(shape)
    shown = range(*numbers.searchsorted((layout.shown.start, layout.shown.stop)).tolist())
    return _Calls(starts_s, ends_s, shown, layout.apart[task.name], layout.times)


# --- what the last step does -------------------------------------------------------------------------------


class _Begin(Struct, frozen=True):
    """The calls of a task that the last step makes, and those of the step before: starts and ends, ranks x calls x ops.

    ``next_s``: when the step before begins the first one that the last does not make; infinity: it makes all.
    """

    before: tuple[Times, Times]
    last: tuple[Times, Times]
    next_s: float

    def is_same(self, length_s: float, until_s: float, slack_s: float) -> bool:
        """Return whether what begins and ends before a moment is a step later than the same of the step before."""
        for before_s, last_s in zip(self.before, self.last, strict=True):
            off_s = np.abs(last_s - before_s - length_s)[before_s + length_s < until_s - slack_s]
            if off_s.max(initial=0.0) > slack_s:
                return False
        return True


def _begin(calls: _Calls) -> _Begin:
    """Return the begin of a task. What was left out of the first section counts."""
    last = calls.starts_s[:, calls.shown.stop :], calls.ends_s[:, calls.shown.stop :]
    count = last[0].shape[1]
    places, passes = _first_shown(calls, count + 1)
    later_s = passes[:, None] * calls.paces_s(slice(None), places)
    starts_s, ends_s = calls.starts_s[:, places] + later_s, calls.ends_s[:, places] + later_s
    next_s = float(starts_s[:, count].min()) if len(places) > count else np.inf
    return _Begin((starts_s[:, :count], ends_s[:, :count]), last, next_s)


def _first_shown(calls: _Calls, count: int) -> tuple[Ints, Ints]:
    """Return which calls stand for so many first ones of the whole step that is shown, and in which pass they do.

    They are fewer where the step has no more.
    """
    shown = calls.shown
    apart = calls.apart[shown.start : shown.stop]
    size, stop = int(apart.max(initial=0)), shown.stop - int(np.argmax(apart[::-1] > 0))  # of the period
    places = np.arange(shown.start, shown.start + count)
    passes = np.clip((places - stop) // max(size, 1) + 1, 0, calls.times if size else 0)
    places -= passes * size
    return places[places < shown.stop], passes[places < shown.stop]


# --- what the step before leaves ---------------------------------------------------------------------------


def _leave_as_much(calls: _Calls, moment_s: float, length_s: float, slack_s: float) -> bool:
    """Return whether the step before the last leaves at a moment what the one before it did a step earlier."""
    last_s, first = calls.last_ends_s, calls.shown.start
    is_left = np.maximum(last_s[:, :first] + length_s, last_s[:, first : 2 * first]) > moment_s + slack_s
    if not is_left.any():  # so it is with most tasks
        return True
    ranks, early = np.nonzero(is_left)
    starts_s, ends_s, more_s = zip(
        *(_last_pass(calls, ranks, places) for places in (early, early + first)), strict=True
    )
    begun_s = np.maximum(starts_s[1], moment_s) - np.maximum(starts_s[0] + length_s, moment_s)
    off_s = [begun_s, ends_s[1] - ends_s[0] - length_s, more_s[1] - more_s[0]]
    is_left = np.maximum(ends_s[0] + length_s, ends_s[1]) > moment_s + slack_s
    return bool(np.abs(off_s).max(axis=0)[is_left].max(initial=0.0) <= slack_s)


def _last_pass(calls: _Calls, ranks: Ints, places: Ints) -> tuple[Times, Times, Times]:
    """Return when the ops of the last ones for which calls stand begin and end, and how much later than these."""
    more_s = calls.times * calls.paces_s(ranks, places)
    return calls.starts_s[ranks, places] + more_s, calls.ends_s[ranks, places] + more_s, more_s
