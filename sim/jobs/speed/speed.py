"""The speed of a job on some GPUs: measured tables, batches that grow with the GPUs or stay, and goodput."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from sim.jobs.errors import JobsError
from sim.jobs.speed.step_time import StepTime

ROUNDING: Final = 1e-9
"""Relative error of a quotient that should be a whole number."""
MOST_LOCAL_BATCH: Final = 4_096
MOST_ACCUMULATED: Final = 7


class Speed(Protocol):
    """The training speed of one job."""

    @property
    def most_gpus(self) -> int:
        """Return the largest number of GPUs on which it is known."""

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the useful samples per second on ``num_gpus`` GPUs of ``num_nodes`` nodes."""

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time that goes into the synchronisation over the network; 0 if unknown."""


@dataclass(frozen=True)
class MeasuredSpeed:
    """Samples per second by number of GPUs; between them, and from 0 GPUs, the speed is linear.

    MeasuredSpeed({1: 100.0, 4: 360.0}).samples_per_s(2, 1)     # 186.7
    """

    table: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.table or min(self.table) < 1 or min(self.table.values()) <= 0.0:
            raise JobsError(
                "throughput", "the table is empty, or not above 0", "write samples/s above 0 by numbers of GPUs"
            )

    @property
    def most_gpus(self) -> int:
        """Return the largest measured number."""
        return max(self.table)

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the interpolated speed; nodes do not matter."""
        del num_nodes
        return interpolated(self.table, num_gpus)

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return 0: a measured speed says nothing of the network."""
        del num_gpus, num_nodes
        return 0.0


def interpolated(table: Mapping[int, float], num_gpus: int) -> float:
    """Return the speed on a number of GPUs: linear between measured numbers and 0, the last slope beyond.

    One measured number beyond which it lies makes the speed proportional to the GPUs. It never falls below a thousandth
    of the last measured speed.
    """
    if num_gpus in table:
        return table[num_gpus]
    points = sorted({0: 0.0, **table}.items())
    place = min(max(bisect_left(points, (num_gpus, 0.0)), 1), len(points) - 1)
    (low, slow), (high, fast) = points[place - 1 : place + 1]
    return max(slow + (fast - slow) * (num_gpus - low) / (high - low), 1e-3 * points[-1][1])


class Batch(Struct, frozen=True):
    """The batch of a step: samples of one GPU and of all, and the learning rate."""

    local: int
    size: int
    learning_rate: float


class ScaledBatchSpeed(Struct, frozen=True, kw_only=True):
    """The batch and the learning rate grow with the GPUs, up to the largest learning rate; all samples are useful.

    ``local_batch`` and ``learning_rate`` are those of one GPU. This is the rule of ONES (SC 2021), as in its artifact.
    """

    step: StepTime
    local_batch: int
    learning_rate: float
    most_learning_rate: float

    @property
    def most_batch(self) -> int:
        """Return the largest batch of all GPUs."""
        return int(self.local_batch * self.most_learning_rate / self.learning_rate * (1.0 + ROUNDING))

    @property
    def most_gpus(self) -> int:
        """Return the largest number of GPUs: each has one sample."""
        return self.most_batch

    def batch(self, num_gpus: int) -> Batch:
        """Return the batch on a number of GPUs."""
        rate = self.learning_rate * num_gpus
        if rate <= self.most_learning_rate * (1.0 + ROUNDING):
            return Batch(self.local_batch, self.local_batch * num_gpus, rate)
        local = self.most_batch // num_gpus
        return Batch(local, local * num_gpus, self.most_learning_rate)

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the samples per second."""
        batch = self.batch(num_gpus)
        return batch.size / float(self.step.step_s(num_nodes, num_gpus, batch.local))

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time in its synchronisation."""
        local = self.batch(num_gpus).local
        return self.step.sync_s(num_nodes, num_gpus) / float(self.step.step_s(num_nodes, num_gpus, local))


class FixedBatchSpeed(Struct, frozen=True, kw_only=True):
    """The batch of all GPUs stays: fewer GPUs accumulate micro-steps of at most ``most_local_batch`` samples.

    This is how Optimus trains (EuroSys 2018, synchronous training): only the number of workers changes.
    """

    step: StepTime
    batch_size: int
    most_local_batch: int

    @property
    def most_gpus(self) -> int:
        """Return the largest number of GPUs: each has one sample."""
        return self.batch_size

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the samples per second; the GPU with most samples is waited for."""
        return self.batch_size / self._step_s(num_gpus, num_nodes)

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time in its synchronisation."""
        return self.step.sync_s(num_nodes, num_gpus) / self._step_s(num_gpus, num_nodes)

    def _step_s(self, num_gpus: int, num_nodes: int) -> float:
        samples = -(-self.batch_size // num_gpus)
        micro_steps = -(-samples // self.most_local_batch)
        return float(self.step.step_s(num_nodes, num_gpus, samples / micro_steps, micro_steps - 1))


class Chosen(Struct, frozen=True):
    """The batch of most goodput: samples of a GPU's micro-step, accumulated micro-steps, useful samples per second."""

    local_batch: int
    accumulated: int
    goodput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSpeed:
    """The job takes the batch of most goodput: throughput multiplied by statistical efficiency (Pollux, OSDI 2021).

    ``batch_size``: the batch with efficiency 1. ``noise_scale``: the gradient noise scale in samples; it is constant.
    ``most_batch``, ``most_local_batch``: limits, the second by memory.
    """

    step: StepTime
    batch_size: int
    noise_scale: float
    most_batch: int
    most_local_batch: int
    _known: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.most_local_batch <= MOST_LOCAL_BATCH or not self.batch_size <= self.most_batch:
            rule = f"a batch of {self.batch_size} of at most {self.most_batch}, {self.most_local_batch} on a GPU"
            remedy = f"write a largest batch above the batch, and at most {MOST_LOCAL_BATCH} samples on a GPU"
            raise JobsError("batch_size", rule, remedy)
        if self.most_local_batch * (MOST_ACCUMULATED + 1) < self.batch_size:
            rule = f"one GPU cannot make a batch of {self.batch_size} of {self.most_local_batch} samples at a time"
            raise JobsError("batch_size", rule, f"accumulate at most {MOST_ACCUMULATED + 1} micro-steps")

    @property
    def most_gpus(self) -> int:
        """Return the largest number of GPUs: each has one sample."""
        return self.most_batch

    def efficiency(self, batch: ArrayLike) -> NDArray[np.float64]:
        """Return the progress of a sample relative to one of the batch with efficiency 1; of each batch of an array."""
        return np.asarray((self.noise_scale + self.batch_size) / (self.noise_scale + np.asarray(batch)))

    def chosen(self, num_nodes: int, num_gpus: int) -> Chosen:
        """Return the batch of most goodput, by trying all. One GPU accumulates batches above ``batch_size``."""
        local = np.arange(1, self.most_local_batch + 1)[:, None]
        accumulated = np.arange(MOST_ACCUMULATED + 1)[None, :]
        batch = num_gpus * local * (accumulated + 1)
        goodput = self.efficiency(batch) * batch / self.step.step_s(num_nodes, num_gpus, local, accumulated)
        allowed = (batch >= self.batch_size) & (batch <= self.most_batch)
        if num_gpus == 1:
            allowed &= (batch <= self.batch_size) | (accumulated > 0)
        best = np.where(allowed, goodput, -1.0)
        row, column = np.unravel_index(int(best.argmax()), best.shape)
        return Chosen(int(row) + 1, int(column), float(best[row, column]))

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time in its synchronisation, with the best batch."""
        best = self.chosen(num_nodes, num_gpus)
        step_s = float(self.step.step_s(num_nodes, num_gpus, best.local_batch, best.accumulated))
        return self.step.sync_s(num_nodes, num_gpus) / step_s

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the goodput of the best batch."""
        key = num_gpus, num_nodes
        if key not in self._known:
            self._known[key] = self.chosen(num_nodes, num_gpus).goodput
        return self._known[key]
