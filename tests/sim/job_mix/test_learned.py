"""The learned policy: its rule against brute force, its shipped weights against FIFO, and its training."""

from itertools import product

import pytest

from benchmarks.learned_policy import FIRST_SEED, Training, mean_jct_s, mix_of, trained
from scenarios.workloads.job_mix.learned_weights import shipped_weights
from sim.jobs.metrics import measure
from sim.jobs.policies.learned import Learned, Weights
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.simulator import simulate_jobs
from tests.sim.job_mix.elastic_jobs import linear_job, waiting_view

CONCAVE = (lambda n: 1.0 / n**0.9, lambda n: 0.3 / n**0.5, lambda n: 2.0 / n**0.7)
HELD_OUT = Training(generations=1, draws=1, num_jobs=20, num_nodes=4)


def test_gain_alone_makes_the_sum_of_relative_speeds_largest() -> None:
    """Where speeds are concave, GPUs given one by one to the largest gain are the best of all splits, as tried."""
    jobs = [linear_job(str(place), 100.0, step_s) for place, step_s in enumerate(CONCAVE)]
    shares = Learned(Weights(gain=1.0)).shares(waiting_view(jobs, (4, 4)))
    splits = [split for split in product(range(9), repeat=3) if sum(split) == 8]
    best = max(
        splits, key=lambda split: sum(step_s(1) / step_s(n) for step_s, n in zip(CONCAVE, split, strict=True) if n)
    )
    assert tuple(shares[place] for place in range(3)) == best


def test_no_job_gets_gpus_that_make_it_slower() -> None:
    """A job whose speed falls beyond two GPUs gets two; the others stay free."""
    job = linear_job("a", 10.0, lambda n: abs(n - 2) + 1.0)
    assert Learned(Weights(promised=5.0)).shares(waiting_view([job], (8,))) == {0: 2}


def test_short_epochs_and_arrivals_order_jobs() -> None:
    """A negative weight serves short epochs first; without weights the job that came first gets all that help it."""
    jobs = [linear_job("a", 100.0, lambda n: 1.0 / n), linear_job("b", 10.0, lambda n: 1.0 / n)]
    view = waiting_view(jobs, (8,))
    assert Learned(Weights(epoch_time=-1.0)).shares(view) == {0: 0, 1: 8}
    assert Learned(Weights()).shares(view) == {0: 8, 1: 0}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shipped_weights_beat_fifo_on_jobs_they_never_saw(seed: int) -> None:
    """On held-out mixes the mean completion time is at most two thirds of FIFO's; two simulations are one."""
    mix, policy = mix_of(HELD_OUT, seed), Learned(shipped_weights())
    record = simulate_jobs(mix, policy)
    assert simulate_jobs(mix, policy) == record
    assert measure(record).mean_jct_s < measure(simulate_jobs(mix, FifoStrict())).mean_jct_s / 1.5


def test_training_improves_on_its_start() -> None:
    """A short training is repeatable, and its weights are better than none on mixes that it did not see."""
    training = Training(generations=3, draws=8, num_jobs=6, num_nodes=4)
    lines: list[str] = []
    found = trained(training, lines.append)
    assert len(lines) == len(found.best_s) == training.generations
    seeds = range(FIRST_SEED - 3, FIRST_SEED)
    after, before = (sum(mean_jct_s(each, training, seed) for seed in seeds) for each in (found.weights, Weights()))
    assert after < before
