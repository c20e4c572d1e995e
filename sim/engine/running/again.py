"""A last step of several that is only begun, and yet shows that the state comes back from step to step.

Of each rank it has as many calls as wait for none of the others. These are no matter where they would all begin later
than what is looked at: docs/design.md has the argument.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from sim.engine.running.period import EQUAL, Times
from sim.engine.running.rank_paces import RankPaces
from sim.engine.running.run import SimulatedRun

_NOTHING: Final = np.empty((0, 0)), np.empty((0, 0))
"""The starts and ends of no calls."""


def begins_again(run: SimulatedRun) -> bool:
    """Return whether the last step begins as the one before it did, after which as much was left as is now.

    The step before is over, and every rank has begun the last, before a call that was left out would begin.
    """
    *_, before_s, last_s = (run.loop.starts_s[node] for node in run.first_nodes)
    length_s = last_s - before_s
    if length_s <= 0.0:
        return False
    of_ranks, windows = zip(*map(run.paces_of_step, run.programs), strict=True)
    begins = [begin for own in of_ranks for begin in _begins(own)]
    made = [begin for begin in begins if begin.last[0].size]
    first_s = min(float(begin.last[0].min()) for begin in made)
    others_s = length_s + min([first_s, *(begin.next_s for begin in begins)])
    over_s = run.origin_s + max(run.rank_paces(rank).last_end_s for rank in run.programs)
    if others_s < max(over_s, *(window.end_s for window in windows)):
        return False
    slack_s = EQUAL * length_s
    is_same = all(begin.is_same(length_s, others_s, slack_s) for begin in made)
    return is_same and all(_leaves_as_much(own, first_s, length_s, slack_s) for own in of_ranks)


class _Begin(Struct, frozen=True):
    """The calls of a task that the last step makes, and those of the step before: starts and ends, calls x ops.

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


def _begins(own: RankPaces) -> Iterator[_Begin]:
    """Yield the begins of all tasks of a rank. What was left out of the first section counts."""
    layout = own.layout
    section = next(period for period in layout.repeated if period[0] in layout.shown)
    for times in own.tasks:
        shown, stop, first, last = times.calls.searchsorted((layout.shown.start, layout.shown.stop, *section)).tolist()
        count, in_a_period = len(times.calls) - stop, last - first
        if not count:
            yield _Begin(_NOTHING, _NOTHING, float(times.starts_s[shown].min()))
            continue
        places = np.arange(shown, shown + count + 1)
        passes = np.clip((places - last) // max(in_a_period, 1) + 1, 0, layout.times if in_a_period else 0)
        places -= passes * in_a_period
        passes, places = passes[places < stop], places[places < stop]
        later_s = passes[:, None] * own.paces_of(times)[places]
        starts_s, ends_s = times.starts_s[places] + later_s, times.ends_s[places] + later_s
        next_s = float(starts_s[count].min()) if len(places) > count else np.inf
        yield _Begin((starts_s[:count], ends_s[:count]), (times.starts_s[stop:], times.ends_s[stop:]), next_s)


def _leaves_as_much(own: RankPaces, moment_s: float, length_s: float, slack_s: float) -> bool:
    """Return whether the step before the last leaves at a moment what the one before it did a step earlier."""
    more_s, (early, late) = own.layout.times * own.paces_s, own.layout.a_step_apart(own.layout.shown.start)
    ends_s = own.ends_s + more_s  # of the last pass
    is_left = np.maximum(ends_s[early] + length_s, ends_s[late]) > moment_s + slack_s
    early, late = early[is_left], late[is_left]
    starts_s = [own.starts_s[places] + more_s[places] for places in (early, late)]
    begun_s = np.maximum(starts_s[1], moment_s) - np.maximum(starts_s[0] + length_s, moment_s)
    off_s = [begun_s, ends_s[late] - ends_s[early] - length_s, more_s[late] - more_s[early]]
    return bool(np.abs(off_s).max(initial=0.0) <= slack_s)
