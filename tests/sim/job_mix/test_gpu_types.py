"""Several types of GPU, Gavel's shares of them, and Gandiva's slices: cases by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.errors import JobsError
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import FreeGpus
from sim.jobs.policies.gandiva import Gandiva
from sim.jobs.policies.gavel import Gavel, fair_shares
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training
from tests.examples import examples


def least_gain(speeds: np.ndarray, gangs: np.ndarray, counts: np.ndarray) -> float:
    """Return the least speed relative to that on an equal share."""
    shares = fair_shares(speeds, gangs, counts)
    assert (shares.sum(axis=1) <= 1.0 + 1e-9).all()
    assert (gangs @ shares <= counts + 1e-9).all()
    equal = speeds @ counts / len(speeds)
    return float((gangs * (shares * speeds).sum(axis=1) / equal).min())


@pytest.mark.parametrize(
    ("speeds", "counts", "optimum"),
    [([[10, 1], [2, 1], [1.5, 1], [3, 1]], [2, 1], 45 / 41), ([[4, 1], [2, 1], [1.5, 1]], [1, 2], 1.0)],
)
def test_linear_program_of_gavel(speeds: list[list[float]], counts: list[float], optimum: float) -> None:
    """Two programs with known optima: 45/41, and 1, where the time of each job is the limit."""
    gangs = np.ones(len(speeds))
    assert least_gain(np.array(speeds), gangs, np.array(counts, dtype=float)) == pytest.approx(optimum, abs=1e-5)


@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_gavel_is_no_worse_than_equal_shares(data: st.DataObject) -> None:
    """Equal shares are feasible where they give no job more than its whole time, so the optimum is at least 1."""
    counts = np.array(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)), dtype=float)
    num_jobs = int(counts.sum()) + data.draw(st.integers(0, 4))
    row = st.lists(st.floats(0.1, 10.0), min_size=len(counts), max_size=len(counts))
    speeds = np.array(data.draw(st.lists(row, min_size=num_jobs, max_size=num_jobs)))
    assert least_gain(speeds, np.ones(num_jobs), counts) >= 1.0 - 1e-5


def test_gavel_gives_each_job_the_type_on_which_it_is_fast() -> None:
    """Two jobs of 100 s, one of which is ten times slower on the old GPU and the other as fast: both take 100 s.

    Without types in mind the first one gets the old GPU, as the file names it first.
    """
    jobs = [Job("picky", 0.0, 1, 100.0, speeds={"old": 0.1}), Job("easy", 0.0, 1, 100.0)]
    mix = Mix(jobs=jobs, gpus_per_node=(1, 1), node_types=("old", "new"))
    assert [job.finish_s for job in simulate_jobs(mix, Gavel()).jobs] == [100.0, 100.0]
    assert simulate_jobs(mix, FifoStrict()).jobs[0].finish_s == 1000.0


def test_gavel_takes_turns_by_time() -> None:
    """Two jobs share one GPU in rounds of 10 s, and are done one round apart."""
    jobs = [Job("a", 0.0, 1, 30.0), Job("b", 0.0, 1, 30.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gavel(10.0))
    assert [job.finish_s for job in record.jobs] == [50.0, 60.0]


def test_a_job_on_two_types_has_the_speed_of_the_slower() -> None:
    """No type has two GPUs; a job that needs two takes both, at half its speed."""
    jobs = [Job("a", 0.0, 2, 50.0, speeds={"old": 0.5})]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1, 1), node_types=("old", "new")), FifoStrict())
    assert record.jobs[0].finish_s == 100.0
    with pytest.raises(JobsError, match="job a makes no progress on old"):
        Job("a", 0.0, 1, 1.0, speeds={"old": 0.0})


def test_placements_keep_to_one_type() -> None:
    """Two GPUs are taken of the first type that has them, however the nodes are filled."""
    free = FreeGpus((1, 2, 1, 4), ("old", "new", "old", "new"))
    assert free.place(2) == ((0, 1), (2, 1))
    assert free.place(2, "new") == ((1, 2),)
    assert free.place(5) == ((1, 1), (3, 4))
    assert free.place(7) == ((0, 1), (1, 2), (3, 4))
    assert free.place(3, "old") is None


def test_gandiva_takes_turns() -> None:
    """Two jobs of 30 s on one GPU in slices of 10 s: the second is done one slice after the first."""
    jobs = [Job("a", 0.0, 1, 30.0), Job("b", 0.0, 1, 30.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Gandiva(10.0))
    assert [job.finish_s for job in record.jobs] == [50.0, 60.0]


def test_gandiva_grows_and_shrinks_elastic_jobs() -> None:
    """A job that asks for one of two GPUs has both until another comes at 5 s: then 30 of its 40 s are left.

    The other is done at 15 s; at 20 s the slice ends, and the first one doubles for its last 15 s.
    """
    training = Training(samples_per_epoch=40.0, num_epochs=1.0, speed=MeasuredSpeed({1: 1.0, 2: 2.0}), most_gpus=2)
    jobs = [elastic_job("a", 0.0, 1, training, 1), Job("b", 5.0, 1, 10.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(2,)), Gandiva(10.0))
    assert [(made.at_s, made.job_id, made.num_gpus) for made in record.decisions] == [
        (0.0, "a", 2), (5.0, "a", 1), (5.0, "b", 1), (20.0, "a", 2),
    ]  # fmt: skip
    assert [job.finish_s for job in record.jobs] == [27.5, 15.0]


def test_gandiva_moves_a_job_to_fewer_nodes() -> None:
    """A job of two GPUs finds one on each node at 7 s. A neighbour ends at 15 s, and the job moves after the slice."""
    rows = [("a", 0.0, 1, 15.0), ("b", 0.0, 2, 5.0), ("c", 0.0, 1, 6.0), ("d", 5.0, 1, 100.0), ("wide", 7.0, 2, 40.0)]
    record = simulate_jobs(Mix(jobs=[Job(*row) for row in rows], gpus_per_node=(2, 2)), Gandiva(10.0))
    held = [(each.placement, each.end_s) for each in record.allocations if each.job_index == 4]
    assert held == [(((0, 1), (1, 1)), 20.0), (((0, 2),), 47.0)]
    assert record.jobs[4].num_rescales == 1
