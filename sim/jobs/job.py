"""A job as it is submitted: its arrival, the GPUs that it asks for, and its training time on them."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from sim.jobs.errors import JobsError
from sim.jobs.speed.trainer import Trainer
from sim.jobs.training import Training


class GpuUse(Struct, frozen=True):
    """What a job takes of each of its GPUs: the part of its time in which it keeps it busy, and of its memory.

    A GPU of which a job takes all is shared with no other.
    """

    time: float = 1.0
    memory: float = 1.0


WHOLE_GPU: Final = GpuUse()


class Job(Struct, frozen=True):
    """A training job. A rigid one makes progress on exactly its GPUs; one with a ``training`` is elastic.

    ``duration_s``: on ``num_gpus`` GPUs of as few nodes as possible. ``speeds``: the speed on types of GPU, relative to
    that of the duration; 1 on a type that is not there. ``network_fraction``: of the time of a step on several nodes,
    that for which the job alone keeps the network busy; an elastic one's follows from its step where that is known.
    ``gpu_use``: of each of its GPUs.

    Job("3", arrival_s=20.0, num_gpus=1, duration_s=30.0)
    """

    id: str
    arrival_s: float
    num_gpus: int
    duration_s: float
    training: Training | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    network_fraction: float = 0.0
    gpu_use: GpuUse = WHOLE_GPU

    def __post_init__(self) -> None:
        if self.num_gpus < 1 or not self.duration_s > 0.0 or self.arrival_s < 0.0:
            rule = f"job {self.id} asks at {self.arrival_s:g} s for {self.num_gpus} GPUs for {self.duration_s:g} s"
            raise JobsError("jobs", rule, "write an arrival of 0 s or later, at least one GPU, and a time above 0")
        if slow := [name for name, speed in self.speeds.items() if not speed > 0.0]:
            raise JobsError("jobs", f"job {self.id} makes no progress on {slow[0]}", "write a speed above 0")

    def speed_on(self, gpu_type: str) -> float:
        """Return the relative speed on a type of GPU."""
        return self.speeds.get(gpu_type, 1.0)

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time for which the network of its nodes is busy, if the job is alone there."""
        if num_nodes == 1:
            return 0.0
        step = 0.0 if self.training is None else self.training.speed.network_share(num_gpus, num_nodes)
        return step or self.network_fraction

    def trainer(self) -> Trainer | None:
        """Return how it trains where its speed changes from epoch to epoch; None elsewhere."""
        epochwise = None if self.training is None else self.training.epochwise
        return None if epochwise is None else epochwise.trainer()

    @property
    def work(self) -> float:
        """Return the work until it is done: useful samples of an elastic job, seconds of a rigid one."""
        return self.duration_s if self.training is None else self.training.samples

    @property
    def most_gpus(self) -> int:
        """Return the largest number of GPUs that it can use."""
        return self.num_gpus if self.training is None else self.training.most_gpus

    def work_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the work done in a second. Raises ValueError for GPUs on which it makes no progress."""
        if (self.training is None and num_gpus != self.num_gpus) or not 1 <= num_gpus <= self.most_gpus:
            raise ValueError(f"job {self.id} of {self.num_gpus} GPUs cannot run on {num_gpus}")
        return 1.0 if self.training is None else self.training.speed.samples_per_s(num_gpus, num_nodes)


def elastic_job(id: str, arrival_s: float, num_gpus: int, training: Training, num_nodes: int) -> Job:
    """Return an elastic job; its duration follows from its speed on ``num_gpus`` GPUs of ``num_nodes`` nodes."""
    if num_gpus > training.most_gpus:
        rule = f"job {id} asks for {num_gpus} GPUs, and can use {training.most_gpus}"
        raise JobsError("jobs", rule, "ask for fewer GPUs, or let it use more")
    return Job(id, arrival_s, num_gpus, training.samples / training.speed.samples_per_s(num_gpus, num_nodes), training)
