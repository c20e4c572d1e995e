"""Policies that want speeds, without them: a job's speed is known on the numbers of GPUs on which it ran.

Between those it is linear, and beyond them it rises as it did last; measured on one number, it is proportional to the
GPUs. An epoch of a job that never ran is taken to need as many GPU-seconds as those measured so far, in the mean.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.policies.shown import Speeds, decide_on, measured_speeds
from sim.jobs.policy import Decision, Policy, View
from sim.jobs.speed.speed import MeasuredSpeed, interpolated

FIRST_EPOCH_GPU_S: Final = 60.0
"""GPU-seconds of an epoch before any was measured; as all jobs have them, they decide nothing."""


class ObservedState(Struct, frozen=True):
    """``measured``: of the jobs that are not done. ``epochs_gpu_s``: of each job that ran, and the policy's state."""

    inner: Any
    measured: Speeds = {}
    epochs_gpu_s: Mapping[int, float] = {}


@dataclass(frozen=True)
class Observed:
    """A policy whose jobs, all elastic, have speeds that were measured, or follow from those."""

    policy: Policy
    ranking: Ranking | None = None

    @property
    def name(self) -> str:
        """Return the name of the policy, and that speeds are observed."""
        return f"{self.policy.name} (speeds observed)"

    @property
    def watched_gpu_s(self) -> tuple[float, ...]:
        """Return the services that the policy watches."""
        return self.policy.watched_gpu_s

    def start(self) -> ObservedState:
        """Return no measurement, and the policy's state."""
        return ObservedState(self.policy.start())

    def decide(self, state: ObservedState, view: View) -> tuple[ObservedState, Decision]:
        """Return what the policy decides on jobs of observed speed."""
        measured = measured_speeds(state.measured, view)
        epochs_gpu_s = {**state.epochs_gpu_s, **_epochs_gpu_s(measured, view)}
        usual_gpu_s = math.exp(fmean(map(math.log, epochs_gpu_s.values()))) if epochs_gpu_s else FIRST_EPOCH_GPU_S
        shown = [_as_observed(each, measured[each.index], usual_gpu_s) for each in view.active]
        inner, decision = decide_on(self.policy, state.inner, view, shown)
        return ObservedState(inner, measured, epochs_gpu_s), decision


def _epochs_gpu_s(measured: Speeds, view: View) -> dict[int, float]:
    """Return the GPU-seconds that an epoch of each running job takes on its GPUs."""
    found = {}
    for index, each in view.running.items():
        assert each.job.training is not None
        if speed := measured[index].get(each.num_gpus):
            found[index] = each.num_gpus * each.job.training.samples_per_epoch / speed
    return found


def _as_observed(each: ActiveJob, measured: Mapping[int, float], usual_gpu_s: float) -> ActiveJob:
    """Return a copy of a job with speeds from its measurements; from those of others if it has none."""
    job = each.job
    assert job.training is not None
    known = measured or {1: job.training.samples_per_epoch / usual_gpu_s}
    table = {count: interpolated(known, count) for count in range(1, job.training.most_gpus + 1)}
    training = replace(job.training, speed=MeasuredSpeed(table))
    duration_s = training.samples / table[job.num_gpus]
    return dataclasses.replace(each, job=replace(job, training=training, duration_s=duration_s))
