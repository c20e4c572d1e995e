"""Elastic jobs for tests: their step takes a stated time on each number of GPUs."""

from collections.abc import Callable

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job, elastic_job
from sim.jobs.policy import View
from sim.jobs.speed.speed import MeasuredSpeed
from sim.jobs.training import Training


def linear_job(name: str, num_steps: float, step_s: Callable[[int], float], *, num_gpus: int = 1, most: int = 8) -> Job:
    """Return a job of one epoch of ``num_steps`` steps that arrives at once."""
    speed = MeasuredSpeed({count: 1.0 / step_s(count) for count in range(1, most + 1)})
    training = Training(samples_per_epoch=num_steps, num_epochs=1.0, speed=speed, most_gpus=most)
    return elastic_job(name, 0.0, num_gpus, training, 1)


def waiting_view(jobs: list[Job], gpus_per_node: tuple[int, ...]) -> View:
    """Return the view of jobs that all wait at 0 s."""
    waiting = [ActiveJob(job, index, 0.0) for index, job in enumerate(jobs)]
    return View(
        now_s=0.0,
        waiting=waiting,
        running={},
        free_gpus=sum(gpus_per_node),
        waiting_gpus=sum(job.num_gpus for job in jobs),
        gpus_per_node=gpus_per_node,
    )
