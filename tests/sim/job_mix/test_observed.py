"""Policies on observed speeds: they see what jobs measured on their numbers of GPUs, and change the real jobs."""

from collections.abc import Mapping

import pytest

from sim.jobs.job import Job, elastic_job
from sim.jobs.policies.observed import FIRST_EPOCH_GPU_S, Observed
from sim.jobs.policies.predicted import Predicted
from sim.jobs.policies.shares import Optimus, rate
from sim.jobs.policy import View
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training


class Watching(Optimus):
    """Optimus that notes the speeds of the first job that it sees, and gives it one GPU, then two, then one."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def shares(self, view: View) -> Mapping[int, int]:
        """Return the shares."""
        first = view.active[0]
        self.seen.append([rate(view, first, count) for count in (1, 2, 3)])
        return {first.index: (1, 2, 1)[min(len(self.seen) - 1, 2)]}


def job(name: str, arrival_s: float, samples: float, speeds: dict[int, float]) -> Job:
    """Return a job of one epoch."""
    training = Training(samples_per_epoch=samples, num_epochs=1.0, speed=MeasuredSpeed(speeds), most_gpus=3)
    return elastic_job(name, arrival_s, 1, training, 1)


def test_speeds_are_known_once_they_were_had() -> None:
    """True speeds are 10, 15 and 16 samples/s: one number makes it proportional, two go on as they rose last."""
    policy = Watching()
    mix = Mix(jobs=[job("a", 0.0, 240.0, {1: 10.0, 2: 15.0, 3: 16.0})], gpus_per_node=(3,), round_s=5.0)
    record = simulate_jobs(mix, Observed(policy))
    guess = 240.0 / FIRST_EPOCH_GPU_S
    assert policy.seen[0] == pytest.approx([guess, 2 * guess, 3 * guess])
    assert policy.seen[1] == pytest.approx([10.0, 20.0, 30.0])
    assert policy.seen[2] == pytest.approx([10.0, 15.0, 20.0])
    assert record.jobs[0].finish_s == pytest.approx(10.0 + (240.0 - 50.0 - 75.0) / 10.0)


def test_a_job_that_never_ran_is_like_those_that_did() -> None:
    """An epoch of the first job takes 24 GPU-seconds; so does one of the second, whatever it would really take."""
    policy = Observed(Watching())
    first, second = job("a", 0.0, 240.0, {1: 10.0, 3: 30.0}), job("b", 1.0, 600.0, {1: 1.0, 3: 3.0})
    mix = Mix(jobs=[first, second], gpus_per_node=(3,), round_s=5.0)
    simulate_jobs(mix, policy)
    seen = policy.policy.seen
    assert seen[-1] == pytest.approx([1.0, 2.0, 3.0])
    assert pytest.approx([25.0, 50.0, 75.0]) in seen


def test_all_jobs_end_whatever_is_known() -> None:
    """Observed speeds and predicted lengths change what a policy knows, and no job's work; two simulations are one."""
    jobs = [job(str(place), 3.0 * place, 100.0 + 50.0 * place, {1: 2.0, 3: 4.0}) for place in range(5)]
    mix, policy = Mix(jobs=jobs, gpus_per_node=(3,), rescale_s=1.0, round_s=5.0), Predicted(Observed(Optimus()))
    record = simulate_jobs(mix, policy)
    assert policy.name == "optimus (speeds observed) (predicted)"
    assert [each.job.work for each in record.jobs] == [each.work for each in jobs]
    assert simulate_jobs(mix, policy) == record
