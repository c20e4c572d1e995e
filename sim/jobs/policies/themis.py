"""Themis (Mahajan et al., NSDI 2020): GPUs are leased, and go to the jobs that are treated least fairly.

The finish-time fairness of a job is its expected completion time, divided by that on a share of the cluster of its own.
Themis lets the least fairly treated jobs bid in an auction. Here they are served one by one, the least fair first:
their only bid would be all the GPUs that they ask for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.policy import Change, Decision, View

ROUNDING: Final = 1e-9
"""Relative error of the end of a lease."""


def unfairness(each: ActiveJob, now_s: float, num_jobs: int, capacity: int) -> float:
    """Return the expected completion time of a job that runs from now on, divided by that on an equal share.

    On a share of fewer GPUs than it asks for, a job takes turns: it is slower in proportion.
    """
    shared_s = now_s - each.job.arrival_s + each.remaining_s(now_s)
    return shared_s / (each.job.duration_s * max(1.0, each.job.num_gpus * num_jobs / capacity))


@dataclass(frozen=True)
class Themis:
    """A job keeps its GPUs for ``lease_s``; then they are offered to all, the job itself included. Durations are known.

    The state: the end of each lease, by index of the job.
    """

    lease_s: float = 1_200.0
    name = "themis"
    watched_gpu_s: tuple[float, ...] = ()
    ranking: Ranking | None = None

    def start(self) -> Mapping[int, float]:
        """Return no leases."""
        return {}

    def decide(self, state: Mapping[int, float], view: View) -> tuple[Mapping[int, float], Decision]:
        """Return the leases, and the changes by which free GPUs and those of ended leases get their holders."""
        now_s = view.now_s
        if not view.waiting:
            return state, Decision()
        leases = {index: state[index] for index in view.running if state[index] * (1.0 - ROUNDING) > now_s}
        offered = [each for each in view.running.values() if each.index not in leases]
        left = view.free_gpus + sum(each.num_gpus for each in offered)
        num_jobs = len(view.waiting) + len(view.running)
        ranked = sorted(
            (*view.waiting, *offered),
            key=lambda each: (-unfairness(each, now_s, num_jobs, view.capacity), each.index),
        )
        starts, stops = [], []
        for each in ranked:
            if each.job.num_gpus <= left:
                left -= each.job.num_gpus
                leases[each.index] = now_s + self.lease_s
                if not each.is_running:
                    starts.append(Change(each, each.job.num_gpus, "least fair finish time"))
            elif each.is_running:
                stops.append(Change(each, 0, "its lease has ended, and others are treated less fairly"))
        return leases, Decision([*stops, *starts], min(leases.values(), default=None))
