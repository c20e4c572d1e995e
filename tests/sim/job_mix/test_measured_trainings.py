"""Trainings from measured tables: interpolated steps, epochs of other speeds, and batches that jobs choose by a fit."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import check_grad

from sim.jobs.errors import JobsError
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import scattered
from sim.jobs.policies.pollux.policy import Pollux
from sim.jobs.policies.queues import FifoFitFirst
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.batches import BatchLimits, Goodput
from sim.jobs.speed.fitted_step import START, Tried, _Errors, fitted_step
from sim.jobs.speed.measured import Adaptive, Application, ChosenBatch, FixedBatch
from sim.jobs.speed.speed import GoodputSpeed
from sim.jobs.speed.step_time import StepTime
from sim.jobs.training import Training
from traces.measured_trainings import FOLDER, Limits, MeasuredEpoch, MeasuredStep, RecordedTraining, read_trainings

STEP = StepTime(
    compute_s=0.05,
    compute_per_sample_s=0.002,
    node_sync_s=0.02,
    node_sync_per_gpu_s=0.001,
    network_sync_s=0.08,
    network_sync_per_gpu_s=0.002,
    overlap=2.0,
)


def measured(counts: tuple[int, ...], batch: int, placed: bool = True) -> MeasuredStep:
    """A measurement that follows ``STEP``."""
    nodes, gpus = len(counts), sum(counts)
    step_s = float(STEP.step_s(nodes, gpus, batch))
    sync_s = step_s - STEP.compute_s - STEP.compute_per_sample_s * batch
    return MeasuredStep(counts if placed else (), nodes, gpus, batch, step_s, sync_s)


def application(chosen_batch: int | None = None) -> Application:
    """Two epochs of 100 steps of 16 samples; a batch of 64 needs fewer steps, of which each makes more progress."""
    counts = [(1,), (2,), (4,), (1, 1), (1, 2), (2, 2), (4, 4)]
    steps = [measured(each, batch) for each in counts for batch in (4, 16, 64)]
    steps += [measured((4,) * 4, batch, placed=False) for batch in (4, 16, 64)]
    epochs = {
        16: (MeasuredEpoch(100.0, 100.0, 1.0, 3.0), MeasuredEpoch(200.0, 200.0, 1.0, 9.0)),
        64: (MeasuredEpoch(101.0, 50.0, 1.0, 3.0), MeasuredEpoch(199.0, 80.0, 1.0, 9.0)),
    }
    return Application(RecordedTraining("a", tuple(steps), epochs, Limits(chosen_batch=chosen_batch)))


def job_of(training: FixedBatch | ChosenBatch, arrival_s: float = 0.0, num_gpus: int = 1) -> Job:
    """A job that trains an application."""
    ends = training.epoch_ends
    its = Training(
        samples_per_epoch=ends[-1] / len(ends), num_epochs=len(ends), speed=training, most_gpus=8, epochwise=training
    )
    return elastic_job(f"{arrival_s:g}", arrival_s, num_gpus, its, 1)


def test_steps_lie_between_measured_ones() -> None:
    """Measured ones are exact, whatever node comes first; a batch between two is linear; so is a number of GPUs."""
    steps = application().steps
    assert steps.times_s((2, 1), 16) == steps.times_s((1, 2), 16)
    step = measured((1, 2), 16)
    assert steps.times_s((1, 2), 16) == pytest.approx((step.step_s, step.sync_s))
    middle = (measured((2,), 16).step_s + measured((2,), 64).step_s) / 2
    assert steps.times_s((2,), 40)[0] == pytest.approx(middle)
    three = steps.times_s((3, 3), 16)[0]
    assert measured((2, 2), 16).step_s < three < measured((4, 4), 16).step_s
    assert steps.counts(6, 2) == (4, 2)
    assert steps.counts(6, 3) == (4, 1, 1)


@pytest.mark.parametrize(("counts", "batch"), [((4,), 65), ((4,), 3), ((4, 4, 4, 4, 4), 16)])
def test_what_was_not_measured_is_refused(counts: tuple[int, ...], batch: int) -> None:
    """Outside of the tables there is no step."""
    with pytest.raises(JobsError, match="were not measured"):
        application().steps.times_s(counts, batch)


def test_progress_follows_the_gradients() -> None:
    """By hand: 4 times the least batch makes (9 + 1) / (9 / 4 + 1) steps in the second epoch; 1 at the least batch."""
    epochs = application().epochs
    assert epochs.ends == [100.0, 199.0]
    assert epochs.gains(64)[1] == pytest.approx(10 / 3.25)
    assert epochs.gains(16) == [1.0, 1.0]
    assert [epochs.epoch_at(done) for done in (0.0, 99.9, 100.0, 199.0)] == [0, 0, 1, 1]
    with pytest.raises(JobsError, match="16 to 64 were measured"):
        epochs.gains(65)


def test_a_fixed_batch_is_split_into_equal_steps() -> None:
    """A GPU accumulates what does not fit; one GPU does so above the least batch, as it measures no variance else."""
    limits = BatchLimits(least=16, most=100, least_local=4, most_local=20)
    assert limits.split(64, 2) == (16, 1)
    assert limits.split(64, 4) == (16, 0)
    assert limits.split(100, 3) == (16, 1)
    single = application()
    assert single.split(16, 1) == (16, 0)
    assert single.split(64, 1) == (32, 1)


def test_epochs_take_their_own_time() -> None:
    """A job alone ends when the steps of its two epochs are done, and with whole seconds at that second."""
    training = FixedBatch(application(), 64)
    (done,) = simulate_jobs(Mix(jobs=[job_of(training)], gpus_per_node=(4,), start_s=5.0), FifoFitFirst()).jobs
    first, second = application().epochs.gains(64)
    step_s = training.application.step_s((1,), training.application.split(64, 1))
    expected_s = 5.0 + step_s * (100.0 / first + 99.0 / second)
    assert done.finish_s == pytest.approx(expected_s)
    assert done.job.duration_s == pytest.approx(expected_s - 5.0)
    assert done.useful_gpu_s == pytest.approx(expected_s - 5.0)
    mix = Mix(jobs=[job_of(training)], gpus_per_node=(4,), start_s=5.0, round_s=60.0, whole_seconds=True)
    (rounded,) = simulate_jobs(mix, FifoFitFirst()).jobs
    assert rounded.finish_s == 5.0 + round(step_s * 100.0 / first) + round(step_s * 99.0 / second)


def test_the_oracle_of_optimus_counts_steps() -> None:
    """By hand: 80 steps less the 50 of the first epoch, and one in the last epoch; one GPU accumulates."""
    training = FixedBatch(application(), 64)
    step_s = measured((2,), 32).step_s
    assert training.left_s(0.0, 2, 1) == pytest.approx(30 * training.application.steps.times_s((2,), 32)[0])
    assert training.left_s(100.0 * 16, 2, 1) == pytest.approx(training.application.steps.times_s((2,), 32)[0])
    assert training.left_s(0.0, 2, 1) == pytest.approx(30 * step_s, rel=0.05)


def test_a_fit_finds_the_step_that_was_measured() -> None:
    """From steps that follow the model, it predicts steps that it never saw; its gradient is that of its errors."""
    tried = [Tried(1, 1, 8), Tried(1, 1, 64), Tried(1, 2, 16), Tried(1, 4, 16), Tried(2, 8, 32), Tried(4, 16, 16)]
    found = {each: _times(each) for each in tried}
    fitted = fitted_step(found)
    for each in (Tried(1, 3, 32), Tried(2, 6, 64), Tried(3, 12, 24)):
        assert float(fitted.step_s(*each)) == pytest.approx(float(STEP.step_s(*each)), rel=0.03)
    errors = _Errors(tried, list(found.values()))
    start = np.array(START) * np.linspace(0.8, 1.3, 7)
    assert check_grad(lambda x: errors.at(x)[0], lambda x: errors.at(x)[1], start) < 1e-3


def _times(tried: Tried) -> tuple[float, float]:
    step_s = float(STEP.step_s(*tried))
    return step_s, step_s - STEP.compute_s - STEP.compute_per_sample_s * tried.local_batch


def test_a_single_measurement_leaves_the_rest_at_its_prior() -> None:
    """Half of the computation is taken for constant, and the unseen network as hardly slower than the unseen node."""
    fitted = fitted_step({Tried(1, 1, 16): (0.1, 0.001)})
    assert fitted.compute_s == pytest.approx(0.0495)
    assert fitted.compute_per_sample_s * 16 == pytest.approx(0.0495, rel=0.01)
    assert fitted.network_sync_s == pytest.approx(1.1 * fitted.node_sync_s)


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16, 32])
def test_fifty_candidates_are_nearly_as_good_as_all(num_gpus: int) -> None:
    """The best of 50 batches has 98 % of the goodput that trying all batches finds, and no more than it."""
    nodes = max(1, num_gpus // 4)
    limits = BatchLimits(least=128, most=4096, least_local=16, most_local=256)
    goodput = Goodput(STEP, 1.0, 8.0, limits)
    best = goodput.best(nodes, num_gpus)
    every = GoodputSpeed(step=STEP, batch_size=128, noise_scale=1024, most_batch=4096, most_local_batch=256)
    most = float(goodput.most(num_gpus)[int(nodes > 1), -1])
    assert 0.98 <= most / every.chosen(nodes, num_gpus).goodput <= 1.0 + 1e-9
    assert limits.least <= num_gpus * best.local * (best.accumulated + 1) <= limits.most
    assert limits.least_local <= best.local <= limits.most_local


def test_a_job_learns_from_what_it_runs() -> None:
    """It begins with the least batch; once gradients are noisier and steps were measured, it takes a larger one."""
    trainer = Adaptive(application())
    assert trainer.estimate is None
    first = trainer.pace((2,), 0.0)
    assert first.work_per_s == pytest.approx(16 / measured((2,), 8).step_s, rel=0.02)
    assert trainer.estimate is not None
    trainer.pace((2,), 100.0 * 16)
    later = trainer.pace((2,), 100.0 * 16)
    assert later.work_per_s > first.work_per_s
    assert later.until == 199.0 * 16
    held = Adaptive(application(chosen_batch=64))
    assert held.pace((2,), 0.0).work_per_s == pytest.approx(16 * 4 / 1.75 / application().steps.times_s((2,), 32)[0])


def test_pollux_shares_a_cluster_among_measured_trainings() -> None:
    """No job is lost, GPU-seconds are conserved, epochs end at whole seconds, and two runs are alike."""
    shared = application()
    jobs = [job_of(ChosenBatch(shared), arrival_s) for arrival_s in (0.0, 30.0, 61.0)]
    mix = Mix(
        jobs=jobs, gpus_per_node=(4, 4), start_s=5.0, resume_s=5.0, rescale_s=5.0, round_s=10.0, whole_seconds=True
    )
    record = simulate_jobs(mix, Pollux(round_s=10.0, population_size=10, generations=4))
    assert len(record.jobs) == 3
    for job in record.jobs:
        assert job.finish_s == int(job.finish_s)
        assert job.useful_gpu_s > 0.0
        assert job.service_gpu_s == pytest.approx(job.useful_gpu_s + job.restart_gpu_s + job.idle_gpu_s)
        assert job.restart_gpu_s >= 5.0 - 1e-9
    assert max(sum(count for _, count in each.placement) for each in record.allocations) > 1
    again = simulate_jobs(mix, Pollux(round_s=10.0, population_size=10, generations=4))
    assert [job.finish_s for job in again.jobs] == [job.finish_s for job in record.jobs]


def test_packaged_applications_have_steps_for_what_they_may_ask() -> None:
    """Speeds are known on up to four nodes, and twice the GPUs never make a training slower by half."""
    for recorded in read_trainings(FOLDER / "pollux").values():
        training = ChosenBatch(Application(recorded))
        counts = [count for count in (1, 2, 4, 8, 16) if count <= training.most_gpus]
        speeds = [training.samples_per_s(count, max(1, count // 4)) for count in counts]
        assert all(after > 0.5 * before for before, after in pairwise(speeds))


def test_scattered_jobs_take_the_emptiest_nodes() -> None:
    """By hand: six GPUs come from the nodes with 4 and 3 free ones; ties go to the first node."""
    assert scattered((2, 4, 3), 6) == ((1, 4), (2, 2))
    assert scattered((2, 2, 2), 1) == ((0, 1),)
    assert scattered((1, 1), 3) is None
