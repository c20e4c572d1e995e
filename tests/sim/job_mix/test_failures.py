"""Nodes that fail under jobs: what is lost, what waits, and what is conserved."""

from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.errors import JobsError
from sim.jobs.job import Job, elastic_job
from sim.jobs.metrics import measure
from sim.jobs.outages import Failures, Outage
from sim.jobs.policies.ones.genome import EMPTY, genome_of, placement_of
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.pollux.policy import Pollux
from sim.jobs.policies.preemptive import ShortestRemainingTime
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.policies.shares import Optimus
from sim.jobs.policies.sia import Sia
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training
from tests.examples import examples


def test_a_failed_job_loses_what_it_did_since_it_saved() -> None:
    """Two nodes of a GPU. At 25 s the first fails for 10 s: 5 s since the state of 20 s are lost.

    The job waits until 35 s, as the other node is taken, restarts for 2 s, and needs 20 s more: done at 57 s.
    """
    jobs = [Job("a", 0.0, 1, 40.0), Job("b", 0.0, 1, 50.0)]
    failures = Failures(listed=[Outage(0, 25.0, 35.0)], save_every_s=10.0)
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1, 1), resume_s=2.0, failures=failures), FifoStrict())
    assert [job.finish_s for job in record.jobs] == [57.0, 50.0]
    assert [(job.num_failures, job.num_preemptions) for job in record.jobs] == [(1, 0), (0, 0)]
    assert [job.lost_gpu_s for job in record.jobs] == [5.0, 0.0]
    found = measure(record)
    assert (found.num_failures, found.lost_gpu_s, found.restart_gpu_s, found.down_gpu_s) == (1, 5.0, 2.0, 10.0)
    assert [made.why for made in record.decisions if not made.num_gpus] == ["node 0 failed"]


def test_a_job_on_several_nodes_fails_with_one_and_may_start_elsewhere() -> None:
    """Three nodes: a job on the first two goes on at once on the first and third, from its second epoch of 10 s."""
    training = Training(samples_per_epoch=100.0, num_epochs=3.0, speed=MeasuredSpeed({1: 5.0, 2: 10.0}), most_gpus=2)
    job = elastic_job("a", 0.0, 2, training, 2)
    failures = Failures(listed=[Outage(1, 25.0, 1e6)])
    record = simulate_jobs(Mix(jobs=[job], gpus_per_node=(1, 1, 1), failures=failures), FifoStrict())
    assert [held.placement for held in record.allocations] == [((0, 1), (1, 1)), ((0, 1), (2, 1))]
    assert record.jobs[0].lost_gpu_s == pytest.approx(2 * 5.0)
    assert record.jobs[0].finish_s == pytest.approx(25.0 + 10.0)


def test_failures_are_drawn_by_their_mean_time() -> None:
    """A node's times from repair to failure have the stated mean; listed ones come in between; seeds differ."""
    drawn = list(islice(Failures(mtbf_s=100.0, repair_s=7.0).of_node(3), 4000))
    assert all(before.end_s <= after.start_s for before, after in pairwise(drawn))
    assert (drawn[-1].start_s - 7.0 * 3999) / 4000 == pytest.approx(100.0, rel=0.05)
    other = Failures(mtbf_s=100.0, repair_s=7.0, seed=1).of_node(3)
    assert next(other) != drawn[0]
    listed = [Outage(3, 1.0, 2.0), Outage(3, 1.5, 9.0), Outage(0, 0.0, 1.0)]
    assert list(Failures(listed=listed).of_node(3)) == [Outage(3, 1.0, 2.0)]


def test_jobs_that_never_save_are_refused() -> None:
    """A job of two nodes that fails every 50 s, and saves every 600 s, would never end."""
    with pytest.raises(JobsError, match="fails every 50 s; it needs 600 s"):
        Mix(jobs=[Job("a", 0.0, 2, 1e4)], gpus_per_node=(1, 1), failures=Failures(mtbf_s=100.0))
    with pytest.raises(JobsError, match="node 2 fails, where the cluster has nodes 0 to 1"):
        Mix(jobs=[], gpus_per_node=(1, 1), failures=Failures(listed=[Outage(2, 0.0, 1.0)]))


def test_genomes_are_made_of_placements() -> None:
    """Jobs on nodes of 2, 0 and 3 GPUs: slots and nodes there and back."""
    placements = {7: ((0, 1), (2, 2)), 9: ((2, 1),)}
    genome = genome_of(placements, (2, 0, 3))
    assert genome == (7, EMPTY, 7, 7, 9)
    for job, placement in placements.items():
        assert placement_of([slot for slot, held in enumerate(genome) if held == job], (2, 0, 3)) == placement


@settings(max_examples=examples(12), deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0.0, 60.0), st.integers(1, 6), st.floats(1.0, 60.0)), min_size=1, max_size=8),
    policy=st.sampled_from((FifoStrict(), ShortestRemainingTime(), Tiresias((20.0,)), Optimus(), Sia(1.0),
                            Ones(0, 7.0, 4, 2.0), Pollux(0, 7.0, 8, 10))),
    round_s=st.sampled_from([None, 10.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_failures_lose_no_job(
    rows: list[tuple[float, int, float]], policy: Policy, round_s: float | None, seed: int
) -> None:
    """All jobs end, GPU-seconds are progress, restarts, idle gangs and losses, and no job holds a node that is down."""
    jobs = []
    for place, (arrival_s, num_gpus, samples) in enumerate(rows):
        table = {count: float(count) ** 0.8 for count in range(1, 9)}
        training = Training(samples_per_epoch=samples / 4, num_epochs=4.0, speed=MeasuredSpeed(table), most_gpus=8)
        jobs.append(elastic_job(str(place), arrival_s, num_gpus, training, 1))
    failures = Failures(mtbf_s=60.0, repair_s=9.0, seed=seed)
    mix = Mix(jobs=jobs, gpus_per_node=(4, 2, 2), resume_s=1.0, round_s=round_s, failures=failures)
    record = simulate_jobs(mix, policy)
    assert len(record.jobs) == len(jobs)
    held = sum((each.end_s - each.start_s) * count for each in record.allocations for _, count in each.placement)
    parts = sum(job.useful_gpu_s + job.restart_gpu_s + job.idle_gpu_s + job.lost_gpu_s for job in record.jobs)
    assert held == pytest.approx(parts, rel=1e-9)
    assert all(min(job.restart_gpu_s, job.lost_gpu_s) >= -1e-6 for job in record.jobs)
    for outage in record.outages:
        assert not [
            each for each in record.allocations
            if outage.node in dict(each.placement) and each.start_s < outage.end_s and each.end_s > outage.start_s
        ]  # fmt: skip
    assert simulate_jobs(mix, policy) == record
