"""Laws of every policy on random job mixes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.generate import PhillyLike
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import consolidated
from sim.jobs.policies.gandiva import Gandiva
from sim.jobs.policies.gavel import Gavel
from sim.jobs.policies.learned import Learned, Weights
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.pollux.policy import Pollux
from sim.jobs.policies.preemptive import LeastAttainedService, ShortestRemainingService, ShortestRemainingTime
from sim.jobs.policies.queues import FifoFitFirst, FifoStrict, ShortestJobFirst
from sim.jobs.policies.shares import ApatheticFutureSharing, Optimus
from sim.jobs.policies.sia import Sia
from sim.jobs.policies.themis import Themis
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.record import Record
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training
from tests.examples import examples

POLICIES = (
    FifoStrict(), FifoFitFirst(), ShortestJobFirst(), ShortestRemainingTime(), ShortestRemainingService(),
    LeastAttainedService(7.0), Tiresias((20.0, 60.0)), Tiresias((60.0,), starvation=2.0),
    Tiresias((50.0,), services_gpu_s=(3.0, 30.0, 90.0)), Themis(7.0), Gavel(7.0), Gandiva(7.0),
)  # fmt: skip
ELASTIC = (
    Optimus(),
    ApatheticFutureSharing(),
    Tiresias((20.0, 60.0)),
    Ones(0, 7.0, 4, 2.0),
    Sia(1.0),
    Gandiva(7.0),
    Pollux(0, 7.0, 8, 10),
    Learned(Weights(service=-1.0, gain=1.0, promised=-1.0, kept=0.5)),
)
NODES = (4, 4, 2)


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Return jobs that fit on three nodes, with or without restarts and rounds."""
    rows = draw(
        st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 10), st.floats(0.1, 60.0)), min_size=1, max_size=12)
    )
    jobs = [Job(str(place), *row) for place, row in enumerate(rows)]
    costs = draw(st.sampled_from([0.0, 3.0])), draw(st.sampled_from([0.0, 5.0]))
    rounds = draw(st.sampled_from([{}, {"prepare_s": 0.5}, {"round_s": 10.0}]))
    return Mix(jobs=jobs, gpus_per_node=NODES, start_s=costs[0], resume_s=costs[1], **rounds)


def most_held(record: Record) -> list[int]:
    """Return the largest number of GPUs held at once on each node; zero-length allocations hold none."""
    most = [0] * len(NODES)
    for node in range(len(NODES)):
        changes = sorted(
            change
            for held in record.allocations
            for place, count in held.placement
            if place == node and held.end_s > held.start_s
            for change in ((held.start_s, 1, count), (held.end_s, 0, -count))
        )
        now = 0
        for _, _, count in changes:
            now += count
            most[node] = max(most[node], now)
    return most


def conserves(record: Record, mix: Mix) -> None:
    """Assert that no job is lost, held GPU-seconds are progress, restarts or idle gangs, and no node is overfull."""
    assert len(record.jobs) == len(mix.jobs)
    held = sum((each.end_s - each.start_s) * count for each in record.allocations for _, count in each.placement)
    parts = sum(job.useful_gpu_s + job.restart_gpu_s + job.idle_gpu_s for job in record.jobs)
    assert held == pytest.approx(parts, rel=1e-9)
    assert all(job.restart_gpu_s >= -1e-6 for job in record.jobs)
    assert all(most <= has for most, has in zip(most_held(record), NODES, strict=True))


@settings(max_examples=examples(16), deadline=None)
@given(mix=mixes(), policy=st.sampled_from(POLICIES))
def test_gpu_seconds_are_conserved(mix: Mix, policy: Tiresias) -> None:
    """No job is lost; GPU-seconds held are those of progress, restarts and idle gangs; no node is overfull."""
    record = simulate_jobs(mix, policy)
    conserves(record, mix)
    for job in record.jobs:
        assert job.useful_gpu_s == pytest.approx(job.job.num_gpus * job.job.duration_s, rel=1e-9)
        assert job.jct_s >= job.job.duration_s * (1.0 - 1e-9)
        assert (job.idle_gpu_s == 0.0) or (mix.round_s is not None) or mix.prepare_s
    assert simulate_jobs(mix, policy) == record


class Unordered:
    """A policy that ranks all jobs anew at each decision."""

    ranking = None

    def __init__(self, policy: Policy) -> None:
        self.name, self.watched_gpu_s = policy.name, policy.watched_gpu_s
        self.start, self.decide = policy.start, policy.decide


@settings(max_examples=examples(16), deadline=None)
@given(mix=mixes(), policy=st.sampled_from((ShortestRemainingTime(), Tiresias((20.0, 60.0)), Tiresias((7.0,)))))
def test_jobs_kept_in_order_are_decided_as_if_all_were_ranked(mix: Mix, policy: Policy) -> None:
    """The order that is kept from event to event changes no decision."""
    assert policy.ranking is not None
    assert simulate_jobs(mix, policy) == simulate_jobs(mix, Unordered(policy))


def test_jobs_that_fall_at_one_instant_fall_together() -> None:
    """Two jobs reach a threshold at instants that only rounding tells apart: one decision knows of both."""
    sizes = [(0.0, 3, 4.0), (0.0, 9, 1.0), (1.0, 6, 1.0), (0.0, 2, 4.0)]
    jobs = [Job(str(n), arrival_s, num_gpus, duration_s) for n, (arrival_s, num_gpus, duration_s) in enumerate(sizes)]
    mix, policy = Mix(jobs=jobs, gpus_per_node=NODES, start_s=3.0, resume_s=5.0), Tiresias((20.0, 60.0))
    record = simulate_jobs(mix, policy)
    assert record == simulate_jobs(mix, Unordered(policy))
    assert [job.num_preemptions for job in record.jobs] == [1, 2, 1, 3]


@st.composite
def elastic_mixes(draw: st.DrawFn) -> Mix:
    """Return elastic jobs whose speed rises with their GPUs, with or without costs and rounds."""
    jobs = []
    rows = st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 10), st.floats(0.1, 200.0), st.integers(2, 6)),
                    min_size=1, max_size=10)  # fmt: skip
    for place, (arrival_s, num_gpus, samples, curvature) in enumerate(draw(rows)):
        table = {count: count / (1.0 + count / curvature) for count in range(1, sum(NODES) + 1)}
        training = Training(
            samples_per_epoch=samples / 4, num_epochs=4.0, speed=MeasuredSpeed(table), most_gpus=sum(NODES)
        )
        jobs.append(elastic_job(str(place), arrival_s, num_gpus, training, 1))
    costs = {"start_s": 1.0, "resume_s": 3.0, "rescale_s": 0.5} if draw(st.booleans()) else {}
    rounds = draw(st.sampled_from([{}, {"prepare_s": 0.5}, {"round_s": 10.0}]))
    return Mix(jobs=jobs, gpus_per_node=NODES, **costs, **rounds)


@settings(max_examples=examples(10), deadline=None)
@given(mix=elastic_mixes(), policy=st.sampled_from(ELASTIC))
def test_elastic_jobs_do_all_their_work(mix: Mix, policy: Policy) -> None:
    """GPU-seconds are conserved, no node is overfull, and each job's progress adds up to its samples."""
    record = simulate_jobs(mix, policy)
    conserves(record, mix)
    for job in record.jobs:
        fastest = job.job.work / job.job.work_per_s(sum(NODES), 1)
        assert job.jct_s >= fastest * (1.0 - 1e-9)
        done, cost_s, ended_s = 0.0, mix.start_s, 0.0
        for place, gpus in enumerate(each for each in record.allocations if each.job_index == job.index):
            if place:
                cost_s = mix.rescale_s if gpus.start_s == ended_s else mix.resume_s
            count, ended_s = sum(count for _, count in gpus.placement), gpus.end_s
            trained_s = min(gpus.end_s, job.finish_s) - gpus.start_s - cost_s
            done += max(0.0, trained_s) * job.job.work_per_s(count, 1)
        assert done == pytest.approx(job.job.work, rel=1e-6)


@settings(max_examples=examples(8), deadline=None)
@given(mix=mixes())
def test_strict_fifo_starts_in_order_of_arrival(mix: Mix) -> None:
    """No job overtakes another."""
    starts = [job.first_start_s for job in simulate_jobs(mix, FifoStrict()).jobs]
    assert starts == sorted(starts)


@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=6), num_gpus=st.integers(1, 40))
def test_placement_takes_what_is_free_on_few_nodes(free: list[int], num_gpus: int) -> None:
    """A placement holds as many GPUs as asked for, on as few nodes as possible, and exists if enough are free."""
    placement = consolidated(free, num_gpus)
    if placement is None:
        assert sum(free) < num_gpus
        return
    assert sum(count for _, count in placement) == num_gpus
    assert all(count <= free[node] for node, count in placement)
    fewest = next(n for n in range(1, len(free) + 1) if sum(sorted(free)[-n:]) >= num_gpus)
    assert len(placement) == fewest


def test_drawn_jobs_offer_the_stated_load() -> None:
    """Twenty thousand jobs, mean GPU-seconds over mean gap: near the load; another seed draws other jobs."""
    jobs = PhillyLike(num_jobs=20_000, load=0.8).jobs(64, seed=3)
    offered = sum(job.num_gpus * job.duration_s for job in jobs) / (64 * jobs[-1].arrival_s)
    assert offered == pytest.approx(0.8, rel=0.12)
    assert jobs != PhillyLike(num_jobs=20_000, load=0.8).jobs(64, seed=4)
