"""The plan that is priced before a decision: the smallest one that has all tasks."""

from typing import TypeVar

from msgspec.structs import replace

from sim.training.spec.job import TrainingJob

Job = TypeVar("Job", bound=TrainingJob)


def one_microbatch(job: Job) -> Job:
    """Return a job of one micro-batch per replica: its tasks are those of the whole job."""
    once = job.training.microbatch_size * job.parallel.data_degree
    return replace(job, training=replace(job.training, global_batch_size=once))
