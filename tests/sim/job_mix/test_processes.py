"""Jobs that are processes of one machine: they share its processors, and decisions wait for new workers."""

import pytest

from sim.jobs.job import Job, elastic_job
from sim.jobs.outages import Failures
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.policies.shares import ApatheticFutureSharing
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training


def process_job(name: str, num_gpus: int, samples: float, arrival_s: float = 0.0) -> Job:
    """Return a job of 1 sample/s on any number of processes, of which each keeps half of the machine busy."""
    training = Training(
        samples_per_epoch=samples, num_epochs=1.0, speed=MeasuredSpeed({1: 1.0, 2: 1.0, 4: 1.0}), most_gpus=4,
        machine_shares={1: 0.5, 2: 1.0, 4: 1.0},
    )  # fmt: skip
    return elastic_job(name, arrival_s, num_gpus, training, 1)


def test_processes_share_the_processors_of_their_machine() -> None:
    """Three jobs of a process each need half of the processors: all go on at two thirds, and then at full speed.

    After 90 s the shortest has done its 60; two fit, so the others end 40 s and 90 s later.
    """
    jobs = [process_job("a", 1, 60.0), process_job("b", 1, 100.0), process_job("c", 1, 150.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,)), FifoStrict())
    assert [job.finish_s for job in record.jobs] == pytest.approx([90.0, 130.0, 180.0])


def test_a_machine_with_enough_processors_slows_nobody() -> None:
    """Two processes that need half of it each; between measured numbers the need is linear, and at most all of it."""
    jobs = [process_job("a", 1, 60.0), process_job("b", 1, 100.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,)), FifoStrict())
    assert [job.finish_s for job in record.jobs] == pytest.approx([60.0, 100.0])
    assert jobs[0].training is not None
    assert [jobs[0].training.machine_share(n) for n in (1, 2, 3, 4)] == [0.5, 1.0, 1.0, 1.0]


def test_a_start_takes_effect_once_its_workers_are_ready() -> None:
    """Workers get ready for 4 s, and start for 2 s. The third job comes meanwhile, and is decided on afterwards."""
    jobs = [Job("a", 0.0, 3, 10.0), Job("b", 1.0, 2, 10.0), Job("c", 2.0, 1, 10.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,), prepare_s=4.0, start_s=2.0), FifoStrict())
    assert [job.first_start_s for job in record.jobs] == [4.0, 20.0, 20.0]
    assert [job.finish_s for job in record.jobs] == [16.0, 32.0, 32.0]


def test_a_job_trains_on_until_its_new_workers_are_ready() -> None:
    """It has four GPUs until 14 s, 4 s after a second one comes; and one, after 1 s without progress, until 23 s.

    The second one is done at 19 s. So the first has done 40 samples, then 8, and the others follow on four GPUs.
    """
    speed = MeasuredSpeed({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    jobs = [
        elastic_job(
            name, arrival_s, 1, Training(samples_per_epoch=samples, num_epochs=1.0, speed=speed, most_gpus=4), 1
        )
        for name, arrival_s, samples in (("a", 0.0, 100.0), ("b", 10.0, 15.0))
    ]
    mix = Mix(jobs=jobs, gpus_per_node=(4,), prepare_s=4.0, rescale_s=1.0)
    record = simulate_jobs(mix, ApatheticFutureSharing())
    held = [(each.job_index, each.start_s, sum(count for _, count in each.placement)) for each in record.allocations]
    assert held == [(0, 4.0, 4), (1, 14.0, 3), (0, 14.0, 1), (0, 23.0, 4)]
    assert [job.finish_s for job in record.jobs] == [23.0 + 1.0 + (100.0 - 10.0 * 4.0 - 8.0) / 4.0, 14.0 + 15.0 / 3.0]


def test_workers_that_get_ready_need_processors() -> None:
    """Two jobs fill the machine. For 3 s a third worker gets ready, and then trains: both go on at two thirds."""
    jobs = [process_job("a", 1, 60.0), process_job("b", 1, 60.0), process_job("c", 1, 60.0, arrival_s=13.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,), prepare_s=3.0), FifoStrict())
    assert record.jobs[2].first_start_s == 16.0
    assert record.jobs[0].finish_s == pytest.approx(3.0 + 10.0 + 50.0 / (2.0 / 3.0))


def test_a_job_that_is_done_before_a_decision_takes_effect_is_left_alone() -> None:
    """It ends at 11 s, while the workers of another one get ready; its GPUs are free when these are."""
    jobs = [Job("a", 0.0, 2, 7.0), Job("b", 9.0, 2, 10.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(4,), prepare_s=4.0), FifoStrict())
    assert [job.finish_s for job in record.jobs] == [11.0, 23.0]
    assert record.jobs[0].idle_gpu_s == 2 * 2.0


def test_rounds_and_failures_are_decided_at_once() -> None:
    """Live runs have neither."""
    jobs = [Job("a", 0.0, 2, 7.0)]
    for options in ({"round_s": 1.0}, {"failures": Failures(mtbf_s=1e6)}):
        with pytest.raises(ValueError, match="take effect at once"):
            Mix(jobs=jobs, gpus_per_node=(4,), prepare_s=4.0, **options)
