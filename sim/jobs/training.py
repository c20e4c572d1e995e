"""The training of an elastic job: its epochs, its speed on some GPUs, and its validation curve."""

import math
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field

from sim.jobs.errors import JobsError
from sim.jobs.speed.speed import Speed, interpolated
from sim.jobs.speed.trainer import Epochwise

ROUNDING: Final = 1e-9
"""Relative error of the work after a whole number of epochs."""


class Curve(Protocol):
    """The validation of a job after a number of epochs."""

    def loss(self, epochs: float) -> float:
        """Return the validation loss."""

    def accuracy_after(self, epochs: float) -> float:
        """Return the validation accuracy."""


class MeasuredCurve(Struct, frozen=True):
    """Validation (loss, accuracy) at the end of each epoch, from epoch 0; between them that of the last one."""

    points: tuple[tuple[float, float], ...]

    def loss(self, epochs: float) -> float:
        """Return the validation loss."""
        return self._point(epochs)[0]

    def accuracy_after(self, epochs: float) -> float:
        """Return the validation accuracy."""
        return self._point(epochs)[1]

    def _point(self, epochs: float) -> tuple[float, float]:
        return self.points[min(int(epochs), len(self.points) - 1)]


class LearningCurve(Struct, frozen=True, kw_only=True):
    """Loss and accuracy after a number of epochs.

    Loss: 1 / (``loss_slope`` k + ``loss_start``) + ``loss_floor`` (Optimus, EuroSys 2018); accuracy: ``accuracy`` times
    1 - exp(-k / ``accuracy_epochs``).
    """

    loss_slope: float = 0.05
    loss_start: float = 0.4
    loss_floor: float = 0.3
    accuracy: float = 0.8
    accuracy_epochs: float = 5.0

    def loss(self, epochs: float) -> float:
        """Return the validation loss."""
        return 1.0 / (self.loss_slope * epochs + self.loss_start) + self.loss_floor

    def accuracy_after(self, epochs: float) -> float:
        """Return the validation accuracy."""
        return self.accuracy * (1.0 - math.exp(-epochs / self.accuracy_epochs))


class Training(Struct, frozen=True, kw_only=True):
    """The work of an elastic job and its speed.

    ``num_epochs``: until it is done; a policy that knows durations knows it, no other. ``most_gpus``: its limit.
    ``epochwise``: where speed and work change from epoch to epoch; ``samples_per_epoch`` is then the mean.
    ``machine_shares``: where GPUs are processes of one machine, the part of its processors that the job keeps busy
    alone, by number of processes.
    """

    samples_per_epoch: float
    num_epochs: float
    speed: Speed
    most_gpus: int
    curve: Curve = LearningCurve()
    epochwise: Epochwise | None = None
    machine_shares: Mapping[int, float] = field(default_factory=dict)

    def machine_share(self, num_gpus: int) -> float:
        """Return the part of a machine's processors that it keeps busy alone; 0 if it has GPUs of its own."""
        return min(1.0, interpolated(self.machine_shares, num_gpus)) if self.machine_shares else 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.most_gpus <= self.speed.most_gpus:
            rule = f"at most {self.most_gpus} GPUs, where the speed is known up to {self.speed.most_gpus}"
            raise JobsError("most_gpus", rule, f"write a number from 1 to {self.speed.most_gpus}")

    @property
    def samples(self) -> float:
        """Return the useful samples until it is done."""
        if self.epochwise is not None:
            return self.epochwise.epoch_ends[-1]
        return self.samples_per_epoch * self.num_epochs

    def epochs(self, done: float) -> float:
        """Return the epochs after so many useful samples, with the part of the one in course."""
        if self.epochwise is None:
            return done / self.samples_per_epoch
        ends = self.epochwise.epoch_ends
        return float(np.interp(done, [0.0, *ends], range(len(ends) + 1)))

    def saved(self, done: float) -> float:
        """Return the useful samples at the end of the last epoch that is done."""
        epochs = math.floor(self.epochs(done) * (1.0 + ROUNDING))
        if self.epochwise is None:
            return epochs * self.samples_per_epoch
        return [0.0, *self.epochwise.epoch_ends][epochs]

    def left_s(self, done: float, num_gpus: int, num_nodes: int) -> float:
        """Return the time from so many useful samples until it is done, on some GPUs."""
        if self.epochwise is not None:
            return self.epochwise.left_s(done, num_gpus, num_nodes)
        return (self.samples - done) / self.speed.samples_per_s(num_gpus, num_nodes)
