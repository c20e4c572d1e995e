"""Policies on predicted durations: they see the predictor's epochs, and change the real jobs."""

import numpy as np
import pytest

from sim.jobs.job import Job, elastic_job
from sim.jobs.policies.ones.history import History
from sim.jobs.policies.ones.predictor import drawn, features
from sim.jobs.policies.predicted import Predicted
from sim.jobs.policies.preemptive import ShortestRemainingTime
from sim.jobs.policies.shares import Optimus
from sim.jobs.policy import Decision, View
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import LearningCurve, Training


class Watching(ShortestRemainingTime):
    """SRTF that notes the epochs of the jobs that it sees."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def decide(self, state: tuple[()], view: View) -> tuple[tuple[()], Decision]:
        """Return SRTF's decision."""
        self.seen.append({each.job.id: each.job.training.num_epochs for each in view.active if each.job.training})
        return super().decide(state, view)


def jobs(epochs: list[float]) -> list[Job]:
    """Return jobs of one GPU with so many epochs of 10 s, 1 s apart."""
    found = []
    for place, number in enumerate(epochs):
        training = Training(
            samples_per_epoch=10.0, num_epochs=number, speed=MeasuredSpeed({1: 1.0, 4: 3.0}), most_gpus=4,
            curve=LearningCurve(accuracy_epochs=number / 3.0),
        )  # fmt: skip
        found.append(elastic_job(str(place), float(place), 1, training, 1))
    return found


def test_a_policy_sees_predicted_epochs() -> None:
    """At first a job's epochs are the beta of the network that is drawn; no true number is seen."""
    mix = Mix(jobs=jobs([4.0, 7.0]), gpus_per_node=(1,))
    policy = Watching()
    record = simulate_jobs(mix, Predicted(policy, seed=3))
    assert len(record.jobs) == 2
    first = drawn(np.random.default_rng([3, 0])).beta(np.array([features(mix.jobs[0], 0.0)]))
    assert policy.seen[0] == {"0": pytest.approx(float(first[0]))}
    assert all(value not in (4.0, 7.0) for seen in policy.seen for value in seen.values())
    assert Predicted(policy).name == "srtf (predicted)"


@pytest.mark.parametrize("policy", [ShortestRemainingTime(), Optimus()], ids=lambda each: each.name)
def test_all_jobs_end_and_work_is_theirs(policy: Optimus) -> None:
    """Whatever is predicted, each job trains its true epochs; two simulations are one."""
    mix = Mix(jobs=jobs([4.0, 9.0, 3.0, 6.0, 5.0]), gpus_per_node=(4,), resume_s=1.0, rescale_s=1.0, round_s=5.0)
    record = simulate_jobs(mix, Predicted(policy))
    for done in record.jobs:
        held = [each for each in record.allocations if each.job_index == done.index]
        assert sum(each.end_s - each.start_s for each in held) > 0.0
        assert done.finish_s - done.first_start_s >= done.job.work / 3.0 * (1.0 - 1e-9)
    assert simulate_jobs(mix, Predicted(policy)) == record


def test_history_is_fitted_as_it_grows() -> None:
    """A network is drawn anew when the epochs of jobs that are done have grown by the factor, and not before."""
    one, two = jobs([4.0, 5.0])
    network = drawn(np.random.default_rng(0))
    grown = History(network, {0: one}).caught_up([], 1.5, np.random.default_rng)
    assert (len(grown.rows), grown.fitted_rows) == (3, 3)
    assert grown.network is not network
    waits = History(network, {1: two}, grown.rows, 5).caught_up([], 1.5, np.random.default_rng)
    assert (len(waits.rows), waits.fitted_rows) == (7, 5)
    assert waits.network is network
