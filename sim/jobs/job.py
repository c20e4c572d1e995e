"""A job as it is submitted: its arrival, the GPUs that it needs at once, and its training time on them."""

from dataclasses import dataclass

from sim.jobs.errors import JobsError


@dataclass(frozen=True, slots=True)
class Job:
    """A rigid training job: it makes progress while it holds all of its GPUs.

    Job("3", arrival_s=20.0, num_gpus=1, duration_s=30.0)
    """

    id: str
    arrival_s: float
    num_gpus: int
    duration_s: float

    def __post_init__(self) -> None:
        if self.num_gpus < 1 or not self.duration_s > 0.0 or self.arrival_s < 0.0:
            rule = f"job {self.id} asks at {self.arrival_s:g} s for {self.num_gpus} GPUs for {self.duration_s:g} s"
            raise JobsError("jobs", rule, "write an arrival of 0 s or later, at least one GPU, and a time above 0")
