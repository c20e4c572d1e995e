"""The record of a simulated job mix: every decision, every allocation, every job's times."""

from collections.abc import Sequence

from msgspec import Struct

from sim.jobs.job import Job
from sim.jobs.outages import Outage
from sim.jobs.placement import Placement


class Decided(Struct, frozen=True):
    """A start, a stop or another number of GPUs of a job, and why. ``num_gpus``: held from then on."""

    at_s: float
    job_id: str
    num_gpus: int
    why: str


class Allocation(Struct, frozen=True):
    """GPUs that a job held from one instant to another.

    ``beside``: the index of the job that shared them all. ``stays``: they are those that it held before, where a job
    came to share them, or left.
    """

    job_index: int
    placement: Placement
    start_s: float
    end_s: float
    beside: int | None = None
    stays: bool = False

    @property
    def gpu_s(self) -> float:
        """Return the GPU-seconds that count as the job's."""
        return self.part * sum(count for _, count in self.placement) * (self.end_s - self.start_s)

    @property
    def part(self) -> float:
        """Return the part of its GPUs that counts as the job's: half of shared ones."""
        return 1.0 if self.beside is None else 0.5


class FinishedJob(Struct, frozen=True):
    """A finished job: instants, and GPU-seconds held (``service_gpu_s``) in all.

    ``held_s``: the time for which it held GPUs, until it was done. ``useful_gpu_s``, ``idle_gpu_s``: of the GPU-seconds
    in progress, and after the job was done, until the next round; ``lost_gpu_s``: in progress that a failure undid.
    ``num_preemptions``: stops by the policy; ``num_rescales``: changes of its GPUs while it ran; ``num_failures``:
    stops by failures of its nodes.
    """

    job: Job
    index: int
    first_start_s: float
    finish_s: float
    held_s: float
    service_gpu_s: float
    useful_gpu_s: float
    idle_gpu_s: float
    lost_gpu_s: float
    num_preemptions: int
    num_rescales: int
    num_failures: int

    @property
    def jct_s(self) -> float:
        """Return the completion time: from arrival to finish."""
        return self.finish_s - self.job.arrival_s

    @property
    def restart_gpu_s(self) -> float:
        """Return the GPU-seconds held while it started, restarted or went to other GPUs."""
        return self.service_gpu_s - self.useful_gpu_s - self.idle_gpu_s - self.lost_gpu_s


class Record(Struct, frozen=True):
    """A whole simulation. ``jobs``: in order of arrival. ``num_gpus``: of the cluster. ``outages``: that began."""

    num_gpus: int
    gpus_per_node: Sequence[int]
    jobs: Sequence[FinishedJob]
    decisions: Sequence[Decided]
    allocations: Sequence[Allocation]
    outages: Sequence[Outage] = ()

    @property
    def makespan_s(self) -> float:
        """Return the instant at which the last job is done."""
        return max(each.finish_s for each in self.jobs)

    @property
    def down_gpu_s(self) -> float:
        """Return the GPU-seconds of nodes that were down, until no job holds a GPU."""
        ends_s = [min(each.end_s, self.released_s) for each in self.outages]
        return sum(
            self.gpus_per_node[each.node] * max(0.0, end_s - each.start_s)
            for each, end_s in zip(self.outages, ends_s, strict=True)
        )

    @property
    def released_s(self) -> float:
        """Return the instant from which no job holds a GPU: with rounds, the end of the last one."""
        return max(each.end_s for each in self.allocations)
