"""Tiresias (Gu et al., NSDI 2019): queues by attained service, so that no job's duration need be known.

A job begins in the first queue. When its GPUs times seconds reach a queue's threshold, it falls to the next. Inside a
queue, Tiresias-L goes by arrival, or by the falls into it; Tiresias-G orders the first queue by the Gittins index of
the services of past jobs.
A job of a lower queue that waits too long is promoted: it goes to the first queue, and its service counts from zero.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.policy import Change, Decision, View, first_gangs

ROUNDING: float = 1e-9
"""Relative error of a service that was added up over several placements."""


def gittins_index(services_gpu_s: Sequence[float], attained_gpu_s: float) -> float:
    """Return the Gittins index of a job that attained a service, by an empirical distribution of total services.

    The index is the largest ratio, over service quanta d, of the chance to be done within d to the expected service
    spent; 1 / GPU-seconds. It is 0 where no past job was longer. Source: Tiresias.
    """
    longer = np.sort(np.asarray([each for each in services_gpu_s if each > attained_gpu_s])) - attained_gpu_s
    if not len(longer):
        return 0.0
    number = np.arange(1, len(longer) + 1)
    spent = np.cumsum(longer) + longer * (len(longer) - number)
    return float(np.max(number / spent))


class TiresiasState(Struct, frozen=True):
    """What is known of jobs, by index.

    ``forgiven_gpu_s``: the service of a promoted one at its promotion. ``fell_s``: where a job is in a queue below the
    first, that queue and the instant of the decision that found it there first.
    """

    forgiven_gpu_s: Mapping[int, float] = {}
    fell_s: Mapping[int, tuple[int, float]] = {}


@dataclass(frozen=True)
class Tiresias:
    """Queues with thresholds in attained GPU-seconds.

    ``starvation``: a job below the first queue goes back to it once it has waited, since its last stop, this many times
    as long as it ran since its arrival or its last promotion; 0: never.
    ``services_gpu_s``: services of past jobs, which order the first queue by their Gittins index; empty: by arrival.
    ``by_fall``: a job that falls goes to the end of its next queue; else queues go by arrival.
    """

    thresholds_gpu_s: tuple[float, ...] = (57_600.0,)
    starvation: float = 0.0
    services_gpu_s: tuple[float, ...] = ()
    by_fall: bool = False
    name = "tiresias"

    @property
    def watched_gpu_s(self) -> tuple[float, ...]:
        """Return the thresholds; with starvation they move, and each decision names the next instant."""
        return () if self.starvation else self.thresholds_gpu_s

    @property
    def ranking(self) -> Ranking | None:
        """Return the order by queue and arrival; None where the order depends on more than a job's service."""
        if self.starvation or self.services_gpu_s or self.by_fall:
            return None
        none = TiresiasState()
        return Ranking(
            waiting=lambda each, now_s: self._rank(each, none, now_s),
            running=lambda each, now_s: self._rank(each, none, now_s),
            most=lambda place, _: place,
        )

    def start(self) -> TiresiasState:
        """Return the state without promotions and falls."""
        return TiresiasState()

    def decide(self, state: TiresiasState, view: View) -> tuple[TiresiasState, Decision]:
        """Return the state after promotions and falls, and the changes."""
        forgiven = self._promoted(state.forgiven_gpu_s, view)
        state = TiresiasState(forgiven, self._fallen(state.fell_s, forgiven, view) if self.by_fall else {})
        changes = first_gangs(view, lambda each: self._rank(each, state, view.now_s), "first queue")
        return state, Decision(changes, self._wake_s(forgiven, view, changes) if self.starvation else None)

    def queue(self, each: ActiveJob, forgiven_gpu_s: float, now_s: float) -> int:
        """Return the index of a job's queue."""
        service = (each.attained_gpu_s(now_s) - forgiven_gpu_s) * (1.0 + ROUNDING)
        return bisect_right(self.thresholds_gpu_s, service)

    def _rank(self, each: ActiveJob, state: TiresiasState, now_s: float) -> tuple[float, float, int]:
        """Return queue, Gittins index in the first queue or instant of the fall, and order of arrival."""
        queue = self.queue(each, state.forgiven_gpu_s.get(each.index, 0.0), now_s)
        if queue or not self.services_gpu_s:
            return queue, state.fell_s.get(each.index, (0, 0.0))[1], each.index
        return queue, -gittins_index(self.services_gpu_s, each.attained_gpu_s(now_s)), each.index

    def _fallen(
        self, fell_s: Mapping[int, tuple[int, float]], forgiven: Mapping[int, float], view: View
    ) -> Mapping[int, tuple[int, float]]:
        """Return queue and instant of the fall of all jobs below the first queue, those that fell now included."""
        found = {}
        for each in view.active:
            if queue := self.queue(each, forgiven.get(each.index, 0.0), view.now_s):
                known = fell_s.get(each.index, (0, 0.0))
                found[each.index] = known if known[0] == queue else (queue, view.now_s)
        return found

    def _promoted(self, state: Mapping[int, float], view: View) -> Mapping[int, float]:
        """Return the forgiven services after all promotions that are due."""
        if not self.starvation:
            return state
        now_s = view.now_s
        starved = {
            each.index: each.attained_gpu_s(now_s)
            for each in view.waiting
            if self._rises_at_s(each, state.get(each.index, 0.0), now_s) <= now_s
        }
        active = view.running.keys() | {each.index for each in view.waiting}
        return {index: value for index, value in (dict(state) | starved).items() if index in active}

    def _rises_at_s(self, each: ActiveJob, forgiven_gpu_s: float, now_s: float) -> float:
        """Return the instant at which a job that waits, or stops now, is promoted; infinite in the first queue."""
        if not self.queue(each, forgiven_gpu_s, now_s):
            return math.inf
        since_s = now_s if each.is_running else each.waiting_since_s
        return since_s + self.starvation * (each.held_s(now_s) - forgiven_gpu_s / each.job.num_gpus)

    def _falls_at_s(self, each: ActiveJob, forgiven_gpu_s: float, now_s: float) -> float:
        """Return the instant at which a job that runs, or starts now, falls; infinite in the last queue."""
        queue = self.queue(each, forgiven_gpu_s, now_s)
        if queue == len(self.thresholds_gpu_s):
            return math.inf
        lacking_gpu_s = self.thresholds_gpu_s[queue] + forgiven_gpu_s - each.attained_gpu_s(now_s)
        return now_s + lacking_gpu_s / each.job.num_gpus

    def _wake_s(self, state: Mapping[int, float], view: View, changes: Sequence[Change]) -> float | None:
        """Return the next instant at which a job falls or is promoted once the changes have been made."""
        changed = {change.job.index for change in changes}
        instants = []
        for each in (*view.waiting, *view.running.values()):
            runs = each.is_running != (each.index in changed)
            next_s = self._falls_at_s if runs else self._rises_at_s
            instants.append(next_s(each, state.get(each.index, 0.0), view.now_s))
        return min((instant for instant in instants if view.now_s < instant < math.inf), default=None)
