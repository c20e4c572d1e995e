"""Tiresias (Gu et al., NSDI 2019): queues by attained service, so that no job's duration need be known.

A job begins in the first queue. When its GPUs times seconds reach a queue's threshold, it falls to the end of the next.
Inside a queue, Tiresias-L goes by arrival; Tiresias-G by the Gittins index of the services of past jobs.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.jobs.active import ActiveJob
from sim.jobs.policy import Decision, View, first_gangs

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


@dataclass(frozen=True)
class Tiresias:
    """Queues with thresholds in attained GPU-seconds.

    ``starvation``: a job that waited this many times its run time goes back to the first queue; 0: never.
    ``services_gpu_s``: services of past jobs, which order the first queue by their Gittins index; empty: by arrival.
    """

    thresholds_gpu_s: tuple[float, ...] = (57_600.0,)
    starvation: float = 0.0
    services_gpu_s: tuple[float, ...] = ()
    name = "tiresias"

    @property
    def watched_gpu_s(self) -> tuple[float, ...]:
        """Return the thresholds; with starvation they move, and each decision names the next instant."""
        return () if self.starvation else self.thresholds_gpu_s

    def start(self) -> Mapping[int, float]:
        """Return the service of each promoted job at its promotion: none."""
        return {}

    def decide(self, state: Mapping[int, float], view: View) -> tuple[Mapping[int, float], Decision]:
        """Return the forgiven services and the changes."""
        state = self._promoted(state, view)
        now_s = view.now_s
        changes = first_gangs(view, lambda each: self._rank(each, state.get(each.index, 0.0), now_s), "first queue")
        return state, Decision(changes, self._wake_s(state, view) if self.starvation else None)

    def queue(self, each: ActiveJob, forgiven_gpu_s: float, now_s: float) -> int:
        """Return the index of a job's queue."""
        service = (each.attained_gpu_s(now_s) - forgiven_gpu_s) * (1.0 + ROUNDING)
        return bisect_right(self.thresholds_gpu_s, service)

    def _rank(self, each: ActiveJob, forgiven_gpu_s: float, now_s: float) -> tuple[float, float, int]:
        """Return queue, Gittins index in the first queue, and order of arrival."""
        queue = self.queue(each, forgiven_gpu_s, now_s)
        if queue or not self.services_gpu_s:
            return queue, 0.0, each.index
        return queue, -gittins_index(self.services_gpu_s, each.attained_gpu_s(now_s)), each.index

    def _promoted(self, state: Mapping[int, float], view: View) -> Mapping[int, float]:
        if not self.starvation:
            return state
        now_s = view.now_s
        starved = {
            each.index: each.attained_gpu_s(now_s)
            for each in view.waiting
            if each.first_start_s is not None
            and now_s - each.waiting_since_s >= self.starvation * each.held_s(now_s) * (1.0 - ROUNDING)
        }
        active = view.running.keys() | {each.index for each in view.waiting}
        return {index: value for index, value in (dict(state) | starved).items() if index in active}

    def _wake_s(self, state: Mapping[int, float], view: View) -> float | None:
        """Return the next instant at which a running job falls, or a waiting one is promoted."""
        now_s = view.now_s
        falls = (
            each.instant_of_service(limit + state.get(each.index, 0.0))
            for each in view.running.values()
            for limit in self.thresholds_gpu_s
        )
        rises = (
            each.waiting_since_s + self.starvation * each.held_s(now_s)
            for each in view.waiting
            if each.first_start_s is not None
        )
        return min((instant for instant in (*falls, *rises) if instant > now_s), default=None)
