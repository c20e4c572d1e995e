"""Elastic jobs worked out by hand: speeds, goodput, shares, and the cost of other GPUs."""

from itertools import pairwise

import pytest

from sim.jobs.active import ActiveJob
from sim.jobs.errors import JobsError
from sim.jobs.job import elastic_job
from sim.jobs.metrics import measure
from sim.jobs.policies.shares import ApatheticFutureSharing, Optimus, rate
from sim.jobs.policies.sia import CHANGE_COST, LEFT_OUT_COST, Sia, rescale_factor
from sim.jobs.policy import View
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import FixedBatchSpeed, GoodputSpeed, MeasuredSpeed, ScaledBatchSpeed, interpolated
from sim.jobs.speed.step_time import StepTime
from sim.jobs.training import LearningCurve, Training
from tests.sim.job_mix.elastic_jobs import linear_job, waiting_view

STEP = StepTime(
    compute_s=0.05, compute_per_sample_s=0.002, network_sync_s=0.08, network_sync_per_gpu_s=0.002, node_sync_s=0.02,
    node_sync_per_gpu_s=0.001, overlap=2.0,
)  # fmt: skip
GOODPUT = GoodputSpeed(step=STEP, batch_size=128, noise_scale=1024.0, most_batch=4096, most_local_batch=256)


@pytest.mark.parametrize(
    ("nodes", "gpus", "local", "accumulated", "step_s", "throughput", "efficiency", "goodput"),
    [
        (1, 1, 128, 0, 0.306000, 418.3007, 1.000000, 418.3007),
        (1, 1, 128, 1, 0.612000, 418.3007, 0.900000, 376.4706),
        (1, 2, 128, 0, 0.306653, 834.8201, 0.900000, 751.3381),
        (1, 4, 128, 0, 0.306790, 1668.8950, 0.750000, 1251.6712),
        (2, 8, 128, 0, 0.319531, 3204.6978, 0.562500, 1802.6425),
        (4, 16, 64, 0, 0.208202, 4918.3046, 0.562500, 2766.5464),
        (4, 16, 128, 0, 0.324500, 6311.2556, 0.375000, 2366.7208),
        (4, 16, 256, 1, 1.134283, 7222.1826, 0.125000, 902.7728),
    ],
)
def test_goodput_is_throughput_times_efficiency(
    nodes: int, gpus: int, local: int, accumulated: int, step_s: float, throughput: float, efficiency: float,
    goodput: float,
) -> None:  # fmt: skip
    """Eight batches on one to sixteen GPUs."""
    batch = gpus * local * (accumulated + 1)
    found_s = float(STEP.step_s(nodes, gpus, local, accumulated))
    assert found_s == pytest.approx(step_s, abs=5e-7)
    assert batch / found_s == pytest.approx(throughput, abs=5e-5)
    assert GOODPUT.efficiency(batch) == pytest.approx(efficiency, abs=5e-7)
    assert batch / found_s * GOODPUT.efficiency(batch) == pytest.approx(goodput, abs=5e-5)


@pytest.mark.parametrize(
    ("nodes", "gpus", "local", "goodput"),
    [(1, 1, 128, 418.3007), (1, 2, 115, 752.6961), (1, 4, 82, 1299.1310), (2, 8, 77, 1933.5579),
     (4, 16, 61, 2768.0304), (8, 32, 53, 3426.8821)],
)  # fmt: skip
def test_the_best_batch_is_found(nodes: int, gpus: int, local: int, goodput: float) -> None:
    """More GPUs take fewer samples each, as larger batches are less efficient."""
    found = GOODPUT.chosen(nodes, gpus)
    assert (found.local_batch, found.accumulated) == (local, 0)
    assert found.goodput == pytest.approx(goodput, abs=5e-5)
    assert GOODPUT.samples_per_s(gpus, nodes) == found.goodput


@pytest.mark.parametrize(
    ("gpus", "local", "rate", "size"),
    [(1, 32, 5e-4, 32), (2, 32, 1e-3, 64), (8, 32, 4e-3, 256), (16, 32, 8e-3, 512), (24, 21, 8e-3, 504),
     (32, 16, 8e-3, 512), (64, 8, 8e-3, 512)],
)  # fmt: skip
def test_batches_grow_up_to_the_largest_learning_rate(gpus: int, local: int, rate: float, size: int) -> None:
    """Batch and learning rate are proportional to the GPUs, then frozen."""
    speed = ScaledBatchSpeed(step=STEP, local_batch=32, learning_rate=5e-4, most_learning_rate=8e-3)
    batch = speed.batch(gpus)
    assert (batch.local, batch.size) == (local, size)
    assert batch.learning_rate == pytest.approx(rate)
    assert speed.samples_per_s(gpus, 4) == pytest.approx(size / float(STEP.step_s(4, gpus, local)))


@pytest.mark.parametrize(
    ("gpus", "local", "micro_steps"), [(1, 32, 4), (2, 32, 2), (3, 21.5, 2), (4, 32, 1), (8, 16, 1)]
)
def test_a_fixed_batch_is_accumulated_on_few_gpus(gpus: int, local: float, micro_steps: int) -> None:
    """128 samples, at most 32 of a GPU at once: micro-steps, of which the last one synchronises."""
    speed = FixedBatchSpeed(step=STEP, batch_size=128, most_local_batch=32)
    alone_s = STEP.compute_s + STEP.compute_per_sample_s * local
    sync_s = STEP.sync_s(2, gpus)
    step_s = (micro_steps - 1) * alone_s + (alone_s**STEP.overlap + sync_s**STEP.overlap) ** (1.0 / STEP.overlap)
    assert speed.samples_per_s(gpus, 2) == pytest.approx(128 / step_s)
    assert speed.network_share(gpus, 2) == pytest.approx(sync_s / step_s)


def test_measured_speeds_are_interpolated() -> None:
    """Through 0 GPUs below the first, along the last slope above the last; never below a thousandth."""
    assert [interpolated({2: 100.0, 4: 160.0}, count) for count in (1, 2, 3, 4, 6)] == [50, 100, 130, 160, 220]
    assert interpolated({2: 100.0, 4: 60.0}, 8) == pytest.approx(0.06)
    with pytest.raises(JobsError, match="at most 5 GPUs, where the speed is known up to 4"):
        Training(samples_per_epoch=1.0, num_epochs=1.0, speed=MeasuredSpeed({4: 1.0}), most_gpus=5)


def test_losses_follow_the_inverse_law() -> None:
    """1 / (0.05 k + 0.4) + 0.3."""
    curve = LearningCurve(loss_slope=0.05, loss_start=0.4, loss_floor=0.3)
    assert [round(curve.loss(k), 6) for k in (0, 10, 100, 1000)] == [2.8, 1.411111, 0.485185, 0.319841]


THREE = [
    linear_job("A", 1000, lambda p: 0.90 / p + 0.10 + 0.01 * (p - 1)),
    linear_job("B", 4000, lambda p: 0.20 / p + 0.05 + 0.02 * (p - 1)),
    linear_job("C", 500, lambda p: 1.80 / p + 0.10 + 0.01 * (p - 1)),
]


@pytest.mark.parametrize("policy", [Optimus(), ApatheticFutureSharing()], ids=lambda each: each.name)
def test_eight_gpus_are_shared_by_gain(policy: Optimus) -> None:
    """Three, two and three GPUs; the remaining times are 420, 680 and 360 s."""
    view = waiting_view(THREE, (8,))
    shares = policy.shares(view)
    assert shares == {0: 3, 1: 2, 2: 3}
    left = [each.job.work / rate(view, each, shares[each.index]) for each in view.waiting]
    assert left == pytest.approx([420.0, 680.0, 360.0])


def test_gains_of_optimus_in_order() -> None:
    """The GPUs after the first go to C, A, B, C and A; the gains are 445, 440, 320, 145 and 140 s."""
    orders = [Optimus().shares(waiting_view(THREE, (count,))) for count in range(3, 9)]
    grown = [next(index for index in range(3) if after[index] > before[index]) for before, after in pairwise(orders)]
    assert grown == [2, 0, 1, 2, 0]
    view = waiting_view(THREE, (8,))
    gains = [Optimus()._gain_s(view, view.waiting[index], count)
             for index, count in ((2, 1), (0, 1), (1, 1), (2, 2), (0, 2))]  # fmt: skip
    assert gains == pytest.approx([445.0, 440.0, 320.0, 145.0, 140.0])


def test_grants_of_apathetic_future_sharing_in_order() -> None:
    """C, A, B, C, A, C, A, B."""
    orders = [{0: 0, 1: 0, 2: 0}]
    orders += [ApatheticFutureSharing().shares(waiting_view(THREE, (count,))) for count in range(1, 9)]
    grown = [next(index for index in range(3) if after[index] > before[index]) for before, after in pairwise(orders)]
    assert "".join("ABC"[index] for index in grown) == "CABCACAB"


def test_integer_program_of_sia() -> None:
    """4 GPUs, A with speeds 1, 1.8, 3 and B with 1, 1.5, 2 on 1, 2, 4: two each, at 1.561853; A alone costs 1.677350.

    Both hold two GPUs, so that four are among their choices.
    """
    tables = ({1: 1.0, 2: 1.8, 4: 3.0}, {1: 1.0, 2: 1.5, 4: 2.0})
    jobs = []
    for place, table in enumerate(tables):
        training = Training(samples_per_epoch=100.0, num_epochs=1.0, speed=MeasuredSpeed(table), most_gpus=4)
        jobs.append(elastic_job(str(place), 0.0, 2, training, 1))
    active = [ActiveJob(job, index, 0.0) for index, job in enumerate(jobs)]
    for each in active:
        each.start(0.0, ((0, 2),), 0.0)
    view = View(now_s=0.0, waiting=[], running=dict(enumerate(active)), free_gpus=0, waiting_gpus=0, gpus_per_node=(4,))
    policy = Sia()
    assert policy.shares(view) == {0: 2, 1: 2}
    assert sum(policy._cost(view, each, 2) for each in active) == pytest.approx(1.561853, abs=5e-7)
    assert policy._cost(view, active[0], 4) + LEFT_OUT_COST - CHANGE_COST == pytest.approx(1.677350, abs=5e-7)
    assert policy.changes(view) == []


def test_changes_cost_jobs_that_changed_often() -> None:
    """Age 600 s, two changes of 30 s; and one of 50 s that lost all of it."""
    assert rescale_factor(600.0, 2, 30.0) == pytest.approx(0.857143, abs=5e-7)
    assert rescale_factor(50.0, 2, 30.0) == 0.0


def test_a_rescale_is_paid_by_all_gpus() -> None:
    """Two perfectly elastic jobs of 40 and 20 GPU-seconds on 4 GPUs, 2 s per change.

    The shorter one has 3 GPUs for 20/3 s. The other then has 100/3 GPU-seconds left, goes to 4 GPUs, waits for 2 s, and
    is done at 20/3 + 2 + 25/3 = 17 s.
    """
    jobs = [linear_job(name, work, lambda p: 1.0 / p, most=4) for name, work in (("a", 40.0), ("b", 20.0))]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,), rescale_s=2.0), ApatheticFutureSharing())
    changes = [(made.job_id, made.num_gpus) for made in record.decisions]
    assert changes == [("a", 1), ("b", 3), ("a", 4)]
    assert [job.finish_s for job in record.jobs] == pytest.approx([17.0, 20.0 / 3.0])
    assert [job.num_rescales for job in record.jobs] == [1, 0]
    found = measure(record)
    assert (found.num_preemptions, found.num_rescales, found.restart_gpu_s) == (0, 1, pytest.approx(8.0))
    assert found.useful_fraction == pytest.approx(60.0 / 68.0)
