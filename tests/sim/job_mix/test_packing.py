"""Jobs that share GPUs: whom Gandiva packs, how fast they are, when they part, and what counts as whose. By hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.job import GpuUse, Job
from sim.jobs.outages import Failures, Outage
from sim.jobs.policies.gandiva import Gandiva
from sim.jobs.record import Record
from sim.jobs.simulator import Mix, simulate_jobs
from tests.examples import examples


def job(name: str, duration_s: float, time: float, memory: float, *, at_s: float = 0.0, num_gpus: int = 1) -> Job:
    """Return a job that keeps its GPUs busy for a part of its time, and takes a part of their memory."""
    return Job(name, at_s, num_gpus, duration_s, gpu_use=GpuUse(time, memory))


def made(record: Record) -> list[tuple[float, str, int]]:
    """Return the decisions."""
    return [(each.at_s, each.job_id, each.num_gpus) for each in record.decisions]


def test_two_jobs_that_fit_share_a_gpu_once_both_were_measured() -> None:
    """Jobs of 30 s that need 0.4 and 0.6 of a GPU: each has a slice of 10 s alone, then both go on at full speed."""
    jobs = [job("a", 30.0, 0.4, 0.5), job("b", 30.0, 0.6, 0.5)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gandiva(10.0))
    assert made(record) == [(0.0, "a", 1), (10.0, "a", 0), (10.0, "b", 1), (20.0, "a", 1)]
    assert [each.finish_s for each in record.jobs] == [40.0, 40.0]
    assert [each.service_gpu_s for each in record.jobs] == [20.0, 20.0]
    assert record.decisions[-1].why == "shares the GPUs of job b"


def test_busy_jobs_share_the_time_of_a_gpu() -> None:
    """They need 0.8 of a GPU each: both go on at 1 / 1.6 of their speeds, and the longer one alone after the other.

    From 20 s on the first needs 20 s and the second 10 s more: the second is done after 16 s, and the first then has
    10 s left.
    """
    jobs = [job("a", 30.0, 0.8, 0.5), job("b", 20.0, 0.8, 0.5)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gandiva(10.0))
    assert [each.finish_s for each in record.jobs] == pytest.approx([46.0, 36.0])
    assert [each.service_gpu_s for each in record.jobs] == pytest.approx([10.0 + 8.0 + 10.0, 10.0 + 8.0])


def test_a_pair_parts_for_good_that_is_slower_than_one_of_them() -> None:
    """Sharing costs each 0.4 of its speed on top: 2 x 0.6 / 1.6 is less than 1, so they take turns from 30 s on.

    Alone until 20 s, together for 10 s at 0.375: 16.25 s are left of each. Turns of 10 s then end at 56.25 and 62.5 s.
    """
    jobs = [job("a", 30.0, 0.8, 0.5), job("b", 30.0, 0.8, 0.5)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,), packing_loss=0.4), Gandiva(10.0))
    assert [each.finish_s for each in record.jobs] == pytest.approx([56.25, 62.5])
    assert all(each.beside is None for each in record.allocations if each.start_s >= 30.0)
    gains = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,), packing_loss=0.1), Gandiva(10.0))
    assert all(each.beside is not None for each in gains.allocations if each.start_s >= 20.0 and each.end_s <= 50.0)


@pytest.mark.parametrize(
    ("one", "other", "packs"),
    [((0.4, 0.6), (0.4, 0.5), True), ((0.4, 0.5), (0.4, 0.5), False), ((1.0, 0.5), (1.0, 0.5), True)],
)
def test_jobs_take_turns_that_do_not_fit(one: tuple[float, float], other: tuple[float, float], packs: bool) -> None:
    """Too much memory, packing off, or GPUs that are never idle: two jobs of 30 s end after 50 and 60 s."""
    jobs = [job("a", 30.0, *one), job("b", 30.0, *other)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gandiva(10.0, packs=packs))
    assert [each.finish_s for each in record.jobs] == [50.0, 60.0]


def test_the_least_busy_jobs_share_and_the_others_take_turns() -> None:
    """Each of three jobs has had a slice alone; then it is the first one's turn, with the least busy of the others."""
    jobs = [job("a", 40.0, 0.5, 0.5), job("b", 40.0, 0.3, 0.5), job("c", 40.0, 0.2, 0.5)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gandiva(10.0))
    pairs = [(each.start_s, each.job_index, each.beside) for each in record.allocations if each.beside is not None]
    assert pairs[:2] == [(30.0, 0, 2), (30.0, 2, 0)]


def test_a_slowed_pair_parts_where_gpus_are_free() -> None:
    """Three jobs on two GPUs; one is done at 35 s, and at 40 s the guest of a slowed pair moves to its GPU."""
    jobs = [job("a", 60.0, 0.9, 0.5), job("b", 25.0, 1.0, 1.0), job("c", 60.0, 0.9, 0.5)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(2,), rescale_s=1.0), Gandiva(10.0))
    shared = [each for each in record.allocations if each.beside is not None]
    assert shared
    assert max(each.end_s for each in shared) < max(each.finish_s for each in record.jobs)
    last = [each for each in record.allocations if each.job_index in (0, 2)][-2:]
    assert {each.beside for each in last} == {None}
    assert record.jobs[0].num_rescales + record.jobs[2].num_rescales >= 1


def test_a_failed_node_stops_both_jobs_of_a_gpu() -> None:
    """Both wait until it is repaired, and take turns again, with what they saved."""
    jobs = [job("a", 60.0, 0.4, 0.5), job("b", 60.0, 0.4, 0.5)]
    failures = Failures(listed=[Outage(0, 35.0, 50.0)], save_every_s=10.0)
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,), failures=failures), Gandiva(10.0))
    assert [each.num_failures for each in record.jobs] == [1, 1]
    assert [each.lost_gpu_s for each in record.jobs] == pytest.approx([5.0 * 17.5 / 25.0] * 2)


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Return rigid jobs that may share GPUs, with costs, losses, rounds and failures or without."""
    part = st.sampled_from([0.2, 0.5, 0.8, 1.0])
    row = st.tuples(st.floats(1.0, 80.0), part, part, st.floats(0.0, 60.0), st.integers(1, 4))
    rows = draw(st.lists(row, min_size=1, max_size=10))
    jobs = [
        job(str(place), *found, at_s=at_s, num_gpus=num_gpus) for place, (*found, at_s, num_gpus) in enumerate(rows)
    ]
    outages = [Outage(0, 30.0, 45.0)] if draw(st.booleans()) else []
    return Mix(
        jobs=jobs, gpus_per_node=(2, 2, 1), resume_s=draw(st.sampled_from([0.0, 2.0])), rescale_s=1.0,
        round_s=draw(st.sampled_from([None, 10.0])), packing_loss=draw(st.sampled_from([0.0, 0.3, 0.6])),
        interference=draw(st.sampled_from([0.0, 0.2])), failures=Failures(listed=outages, save_every_s=5.0),
    )  # fmt: skip


@settings(max_examples=examples(16), deadline=None)
@given(mix=mixes())
def test_shared_gpus_are_counted_once(mix: Mix) -> None:
    """GPU-seconds are conserved, no node is overfull, and no job is lost or faster than alone; two runs are one."""
    record = simulate_jobs(mix, Gandiva(7.0))
    assert len(record.jobs) == len(mix.jobs)
    held = sum(each.gpu_s for each in record.allocations)
    assert held == pytest.approx(sum(each.service_gpu_s for each in record.jobs), rel=1e-9)
    parts = sum(each.useful_gpu_s + each.restart_gpu_s + each.idle_gpu_s + each.lost_gpu_s for each in record.jobs)
    assert held == pytest.approx(parts, rel=1e-9)
    for each in record.jobs:
        assert each.jct_s >= each.job.duration_s * (1.0 - 1e-9)
        assert each.restart_gpu_s >= -1e-6
    instants = sorted({each.start_s for each in record.allocations})
    for node, has in enumerate(mix.gpus_per_node):
        for now_s in instants:
            spans = [each for each in record.allocations if each.start_s <= now_s < each.end_s]
            assert sum(each.part * dict(each.placement).get(node, 0) for each in spans) <= has
    assert simulate_jobs(mix, Gandiva(7.0)) == record
