"""The request to run a job mix on real processes, and its result. They need no torch."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from backends.execution.silence import SILENCE_S
from sim.jobs.job import Job
from sim.jobs.policy import Policy
from sim.jobs.record import Record
from sim.jobs.speed.speed import Batch, ScaledBatchSpeed


class Perceptron(Struct, frozen=True, kw_only=True):
    """A network of two layers with a relu between them, and the classes that it learns to tell apart."""

    num_features: int
    hidden_size: int
    num_classes: int


class LiveTraining(Struct, frozen=True, kw_only=True):
    """The training of a job: a network on drawn samples. ``batches``: of a step, by the number of GPUs.

    Samples, initial parameters and the order of each epoch follow from ``seed``.
    """

    network: Perceptron
    samples_per_epoch: int
    num_epochs: int
    batches: ScaledBatchSpeed
    seed: int

    @property
    def samples(self) -> int:
        """Return the samples of all epochs."""
        return self.samples_per_epoch * self.num_epochs

    def batch(self, num_gpus: int) -> Batch:
        """Return the batch of a step on a number of GPUs."""
        return self.batches.batch(num_gpus)


class JobsRequest(Struct, frozen=True, kw_only=True):
    """Jobs with their trainings, by place; the slots of each node; the policy.

    ``check``: train in 64 bits, and train each job once more on one process with the same batches.
    """

    jobs: Sequence[Job]
    trainings: Sequence[LiveTraining]
    slots_per_node: Sequence[int]
    policy: Policy
    check: bool = False
    timeout_s: float = SILENCE_S


Event = Literal["start", "resume", "rescale", "stop", "finish"]


class HandedOver(Struct, frozen=True):
    """A change of a job's slots, or its end. ``slots``: in order of rank, none after a stop or the end.

    ``took_s``: from the decision until all workers went on; ``paused_s``: of that, without progress.
    ``identical``: whether all ranks then had the same bits of parameters and momentum.
    """

    at_s: float
    job_id: str
    event: Event
    slots: tuple[int, ...]
    took_s: float
    paused_s: float
    identical: bool


class Step(Struct, frozen=True):
    """One step of a job: its first sample, counted over all epochs, the batch, the learning rate, the mean loss."""

    position: int
    batch_size: int
    learning_rate: float
    loss: float


class Compared(Struct, frozen=True):
    """A job's training beside one on a single process: the largest difference of a loss, and of a final parameter."""

    loss_error: float
    parameter_error: float


class JobsExecution(Struct, frozen=True, kw_only=True):
    """A job mix that was run. ``num_ended``: processes that ended and were started again.

    ``steps``, ``compared``: by job; no comparison without a check.
    """

    record: Record
    handed_over: Sequence[HandedOver]
    num_ended: int
    steps: Mapping[str, Sequence[Step]]
    compared: Mapping[str, Compared] = field(default_factory=dict)


class MeasuredJobs(Struct, frozen=True, kw_only=True):
    """The speeds and costs of trainings on this machine.

    ``samples_per_s``: of each training alone, by number of slots. ``machine_shares``: the part of the machine's
    processors that it keeps busy then. ``prepare_s``: from a decision until new workers are ready; the old ones train
    meanwhile. ``start_s``, ``resume_s``, ``rescale_s``: from then until all workers of a job go on. All are means.
    """

    samples_per_s: Sequence[Mapping[int, float]]
    machine_shares: Sequence[Mapping[int, float]]
    prepare_s: float
    start_s: float
    resume_s: float
    rescale_s: float
