"""Jobs that meet on the network of a node slow each other down, by the engine's rule of sharing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.sharing import fair_fractions
from sim.jobs.job import Job
from sim.jobs.policies.preemptive import ShortestRemainingTime
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import GoodputSpeed, MeasuredSpeed, ScaledBatchSpeed
from sim.jobs.speed.step_time import StepTime
from tests.examples import examples
from tests.sim.job_mix.test_job_laws import Unordered


@pytest.mark.parametrize(("round_s", "finish_s"), [(None, [150.0, 100.0]), (40.0, [160.0, 100.0])])
def test_jobs_that_meet_lose_a_fraction(round_s: float | None, finish_s: list[float]) -> None:
    """Two jobs meet on a node and lose half of their speed, until the shorter one leaves, with rounds at their end."""
    jobs = [Job("a", 0.0, 3, 100.0), Job("b", 0.0, 3, 50.0), Job("c", 0.0, 1, 10.0)]
    mix = Mix(jobs=jobs[:2], gpus_per_node=(2, 2, 2), interference=0.5, round_s=round_s)
    assert [job.finish_s for job in simulate_jobs(mix, FifoStrict()).jobs] == pytest.approx(finish_s)
    apart = Mix(jobs=jobs, gpus_per_node=(2, 2, 2, 1), interference=0.5)
    assert simulate_jobs(apart, FifoStrict()).jobs[2].finish_s == 10.0


def test_fractions_are_fair_on_progress() -> None:
    """Two meet on a link that they would fill one and a half times; a third has one for itself."""
    found = fair_fractions([{"a": 0.9}, {"a": 0.6, "b": 0.1}, {"c": 0.5}])
    assert found == pytest.approx([2 / 3, 2 / 3, 1.0])
    assert fair_fractions([]) == []


def test_jobs_on_one_node_share_its_network() -> None:
    """Three nodes of two GPUs, two jobs of three: they meet on the middle one, and each needs 80 % of its time.

    Both go on at 1 / 1.6 of their speed. After 80 s the second has done its 50 s; the first has 50 s left, alone.
    """
    jobs = [Job("a", 0.0, 3, 100.0, network_fraction=0.8), Job("b", 0.0, 3, 50.0, network_fraction=0.8)]
    mix = Mix(jobs=jobs, gpus_per_node=(2, 2, 2), shared_network=True)
    record = simulate_jobs(mix, FifoStrict())
    assert [each.placement for each in record.allocations] == [((1, 1), (2, 2)), ((0, 2), (1, 1))]
    assert [job.finish_s for job in record.jobs] == pytest.approx([130.0, 80.0])
    alone = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(2, 2, 2)), FifoStrict())
    assert [job.finish_s for job in alone.jobs] == [100.0, 50.0]


def test_a_job_that_restarts_keeps_its_delay() -> None:
    """The second job comes while the first is still starting: its progress begins when it would have, but slower."""
    jobs = [Job("a", 0.0, 3, 100.0, network_fraction=0.8), Job("b", 5.0, 3, 200.0, network_fraction=0.8)]
    mix = Mix(jobs=jobs, gpus_per_node=(2, 2, 2), start_s=10.0, shared_network=True)
    record = simulate_jobs(mix, FifoStrict())
    assert record.jobs[0].finish_s == pytest.approx(10.0 + 160.0)
    assert record.jobs[0].restart_gpu_s == pytest.approx(30.0)


def test_shares_of_the_network_follow_from_steps() -> None:
    """The synchronisation's part of a step: 0.2 of 0.5 s, nothing on one node, the stated one without a step."""
    step = StepTime(compute_s=0.1, compute_per_sample_s=0.02, network_sync_s=0.2)
    scaled = ScaledBatchSpeed(step=step, local_batch=10, learning_rate=1.0, most_learning_rate=8.0)
    assert scaled.network_share(2, 2) == pytest.approx(0.2 / 0.5)
    goodput = GoodputSpeed(step=step, batch_size=20, noise_scale=0.0, most_batch=20, most_local_batch=10)
    assert goodput.network_share(2, 2) == pytest.approx(0.2 / 0.5)
    assert MeasuredSpeed({2: 1.0}).network_share(2, 2) == 0.0
    assert [Job("a", 0.0, 2, 1.0, network_fraction=0.3).network_share(2, nodes) for nodes in (1, 2)] == [0.0, 0.3]


@settings(max_examples=examples(12), deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0.0, 60.0), st.integers(1, 6), st.floats(1.0, 60.0), st.floats(0.0, 1.0)),
                  min_size=1, max_size=10),
    policy=st.sampled_from((FifoStrict(), ShortestRemainingTime(), Tiresias((20.0, 60.0)))),
    round_s=st.sampled_from([None, 10.0]),
)  # fmt: skip
def test_a_shared_network_loses_no_work(
    rows: list[tuple[float, int, float, float]], policy: Policy, round_s: float | None
) -> None:
    """No job is faster than alone, GPU-seconds are conserved, and jobs kept in order are decided as if ranked anew."""
    jobs = [Job(str(place), *row[:3], network_fraction=row[3]) for place, row in enumerate(rows)]
    mix = Mix(jobs=jobs, gpus_per_node=(2, 2, 2), resume_s=2.0, round_s=round_s, shared_network=True)
    record = simulate_jobs(mix, policy)
    held = sum((each.end_s - each.start_s) * count for each in record.allocations for _, count in each.placement)
    parts = sum(job.useful_gpu_s + job.restart_gpu_s + job.idle_gpu_s for job in record.jobs)
    assert held == pytest.approx(parts, rel=1e-9)
    for job in record.jobs:
        assert job.useful_gpu_s >= job.job.num_gpus * job.job.duration_s * (1.0 - 1e-9)
        assert job.restart_gpu_s >= -1e-6
    assert record == simulate_jobs(mix, Unordered(policy))
