"""Pollux's search: rules that every allocation keeps, the optimum of small cases, and who gets what."""

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.jobs.policies.pollux.policy import Pollux
from sim.jobs.policies.pollux.search import FLOOR, MOST_NODES, Floats, Ints, Problem, evolved, fitness, repaired
from sim.jobs.simulator import Mix, simulate_jobs
from tests.examples import examples
from tests.sim.job_mix.elastic_jobs import linear_job


def problem_of(held: list[list[int]], node_gpus: list[int], most: list[int], exponents: list[float]) -> Problem:
    """A case whose jobs' speedups are powers of their GPUs, and a quarter less on several nodes."""

    def speedup(num_gpus: Ints, num_nodes: Ints) -> Floats:
        return np.asarray(num_gpus ** np.array(exponents) * np.where(num_nodes > 1, 0.75, 1.0))

    return Problem(np.array(held), np.array(node_gpus), np.array(most), np.full(len(most), 0.8), speedup)


@given(
    num_jobs=st.integers(1, 6), num_nodes=st.integers(1, 20), seed=st.integers(0, 2**32 - 1), most=st.integers(1, 12)
)
@settings(max_examples=examples(40), deadline=None)
def test_repaired_allocations_keep_the_rules(num_jobs: int, num_nodes: int, seed: int, most: int) -> None:
    """No node has more GPUs taken than it has, nor two jobs of several nodes; no job has too many GPUs or nodes.

    An allocation that keeps all rules is left as it is.
    """
    random, case = np.random.default_rng(seed), (num_jobs, num_nodes)
    node_gpus = random.integers(0, 5, size=num_nodes)
    held, ones = np.zeros(case, dtype=np.int64), np.ones(num_jobs)
    problem = Problem(held, node_gpus, np.full(num_jobs, most), ones, lambda gpus, _: gpus * 1.0)
    found = repaired(problem, random.integers(0, 6, size=(8, *case)), random)
    assert (found >= 0).all()
    assert (found.sum(axis=1) <= node_gpus).all()
    assert (found.sum(axis=2) <= most).all()
    assert ((found > 0).sum(axis=2) <= MOST_NODES).all()
    spread = (found > 0) & ((found > 0).sum(axis=2) > 1)[:, :, None]
    assert (spread.sum(axis=1) <= 1).all()
    assert np.array_equal(repaired(problem, found, random), found)


def test_without_avoidance_a_node_holds_two_jobs_of_several_nodes() -> None:
    """Two jobs that meet stay as they are; with avoidance the second leaves the node."""
    meeting, ones = np.array([[[2, 1, 0], [0, 1, 2]]]), np.ones(2)
    held, gpus, most = np.zeros((2, 3), dtype=np.int64), np.full(3, 2), np.full(2, 8)
    for avoids, expected in ((False, meeting), (True, np.array([[[2, 1, 0], [0, 0, 2]]]))):
        problem = Problem(held, gpus, most, ones, lambda gpus, _: gpus * 1.0, avoids)
        assert np.array_equal(repaired(problem, meeting, np.random.default_rng(0)), expected)


def allocations(problem: Problem) -> Iterator[Ints]:
    """All allocations that keep the rules."""
    shape = problem.held.shape
    of_nodes = [
        [row for row in product(range(gpus + 1), repeat=shape[0]) if sum(row) <= gpus] for gpus in problem.node_gpus
    ]
    random = np.random.default_rng(0)
    for columns in product(*of_nodes):
        found = np.array(columns).T.reshape(shape)
        if np.array_equal(repaired(problem, found[None], random)[0], found):
            yield found


@pytest.mark.parametrize("exponents", [[0.9, 0.5], [1.0, 1.0], [0.3, 0.8]])
@pytest.mark.parametrize("held", [[[0, 0], [0, 0]], [[2, 0], [0, 2]], [[1, 0], [1, 2]]])
def test_the_search_finds_the_optimum_of_small_cases(held: list[list[int]], exponents: list[float]) -> None:
    """Of two jobs on two nodes it finds the fitness that trying all allocations finds."""
    problem = problem_of(held, [2, 2], [4, 4], exponents)
    best = max(float(fitness(problem, each[None])[0]) for each in allocations(problem))
    found = evolved(problem, problem.held[None], 30, 60, np.random.default_rng(1))
    assert float(fitness(problem, found[:1])[0]) == pytest.approx(best, rel=1e-12)


def test_fitness_is_a_harmonic_mean_of_speedups() -> None:
    """By hand: one job goes on with 4 GPUs of a node, the other changes from 1 to 2 and keeps 0.8 of its speedup."""
    problem = problem_of([[4, 0], [0, 1]], [4, 4], [8, 8], [1.0, 1.0])
    expected = 2 / (1 / (4 + FLOOR) + 1 / (1.6 + FLOOR))
    assert float(fitness(problem, np.array([[[4, 0], [0, 2]]]))[0]) == pytest.approx(expected)


def test_a_job_alone_explores_by_doubling() -> None:
    """It gets at most twice what it held before, round by round, until it has the whole cluster."""
    job = linear_job("a", 1e4, lambda count: 1.0 / count)
    record = simulate_jobs(Mix(jobs=[job], gpus_per_node=(4, 4)), Pollux(0, 10.0))
    sizes = [decided.num_gpus for decided in record.decisions]
    assert sizes[0] <= 2
    assert all(new <= 2 * old for old, new in pairwise(sizes))
    assert max(sizes) == 8


def test_equal_jobs_end_with_equal_shares() -> None:
    """Two equal jobs on two nodes get a node each, and keep it while both run."""
    jobs = [linear_job(name, 4e3, lambda count: 1.0 / count) for name in "ab"]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4, 4)), Pollux(0, 10.0))
    longest = [
        max(record.allocations, key=lambda held: (held.job_index == i, held.end_s - held.start_s)) for i in (0, 1)
    ]
    assert [sum(count for _, count in held.placement) for held in longest] == [4, 4]
    assert all(len(held.placement) == 1 for held in longest)
