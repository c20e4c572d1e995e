"""The batch of an elastic job: a fixed one split over its GPUs, or the one with the most useful samples per second."""

import math
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.jobs.speed.measured_epochs import gain
from sim.jobs.speed.step_time import StepTime

CANDIDATES: Final = 50
"""Batches that are compared, in geometric steps."""
ROUNDING: Final = 1e-8
"""Error of a quotient that should be a whole number."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class SplitBatch(NamedTuple):
    """Samples of a GPU's micro-step, and micro-steps that are accumulated before the last one."""

    local: int
    accumulated: int


class BatchLimits(Struct, frozen=True):
    """Limits in samples: of the batch of all GPUs, and of a GPU's micro-step."""

    least: int
    most: int
    least_local: int
    most_local: int

    def split(self, batch: int, num_gpus: int, least_accumulated: int = 0) -> SplitBatch:
        """Return a batch as micro-steps of equal size, rounded up, and as few as fit."""
        local = _ceil(batch / num_gpus)
        accumulated = max(_ceil(local / self.most_local) - 1, least_accumulated)
        return self.cut(SplitBatch(_ceil(local / (accumulated + 1)), accumulated), num_gpus)

    def cut(self, split: SplitBatch, num_gpus: int) -> SplitBatch:
        """Return a split batch of at most as many samples as are allowed."""
        return SplitBatch(min(split.local, self.most // (num_gpus * (split.accumulated + 1))), split.accumulated)


class Goodput(Struct, frozen=True):
    """Useful samples per second as a job estimates them: by a fitted step, the last gradients, and its limits.

    ``grad_sqr``, ``grad_var``: at the least batch. Source: Pollux, OSDI 2021, section 3; candidates as in its artifact.
    """

    step: StepTime
    grad_sqr: float
    grad_var: float
    limits: BatchLimits

    def best(self, num_nodes: int, num_gpus: int) -> SplitBatch:
        """Return the batch of most goodput on some GPUs."""
        local, accumulated, goodputs = self._candidates(np.array([num_nodes]), np.array([num_gpus]))
        place = int(goodputs[:, 0].argmax())
        return self.limits.cut(SplitBatch(int(local[place, 0]), int(accumulated[place, 0])), num_gpus)

    def most(self, most_gpus: int) -> Floats:
        """Return the goodput of the best batch in samples/s, on 1, 2, ... GPUs: a row for one node, one for several."""
        gpus = np.tile(np.arange(1, most_gpus + 1), 2)
        nodes = np.repeat([1, 2], most_gpus)
        found: Floats = self._candidates(nodes, gpus)[2].max(axis=0).reshape(2, most_gpus)
        return found

    def _candidates(self, num_nodes: Ints, num_gpus: Ints) -> tuple[Ints, Ints, Floats]:
        """Return samples of a micro-step, accumulated ones and goodputs: shape (candidates, pairs).

        One GPU accumulates where its batch is larger than the least: gradients of one micro-step tell no variance.
        """
        limits = self.limits
        least = np.maximum(limits.least, limits.least_local * num_gpus)
        local = least * (limits.most / least) ** (np.arange(CANDIDATES) / (CANDIDATES - 1))[:, None] / num_gpus
        accumulated = np.ceil(local / limits.most_local - ROUNDING) - 1
        alone = (num_gpus == 1) & (local > limits.least + ROUNDING)
        accumulated = np.where(alone, np.maximum(accumulated, 1), accumulated).astype(np.int64)
        micro = np.ceil(local / (accumulated + 1) - ROUNDING).astype(np.int64)
        scale = num_gpus * micro * (accumulated + 1) / limits.least
        steps_per_s = 1.0 / self.step.steps_s(num_nodes, num_gpus, micro, accumulated)
        goodputs = gain(scale, self.grad_sqr, self.grad_var) * steps_per_s * limits.least
        allowed = (limits.least_local <= micro) & (micro <= limits.most_local)
        return micro, accumulated, np.where(allowed, goodputs, 0.0)


def _ceil(quotient: float) -> int:
    return math.ceil(quotient - ROUNDING)
