"""Statistical efficiency from measured gradients: by epoch, and linear between measured batches.

Progress counts steps of the least batch with efficiency 1 (Pollux, OSDI 2021, section 3.1): a step of another batch
makes (var + sqr) / (var / scale + sqr) of it, where scale is the batch divided by the least one.
"""

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.jobs.errors import JobsError
from traces.measured_trainings import MeasuredEpoch

Floats = NDArray[np.float64]
ROUNDING = 1e-12
"""Relative error of the progress at an epoch's end."""


class MeasuredEpochs:
    """The epochs of one application: the same number for every batch."""

    def __init__(self, epochs: Mapping[int, tuple[MeasuredEpoch, ...]]) -> None:
        self.batches = tuple(sorted(epochs))
        rows = [epochs[batch] for batch in self.batches]
        progress = np.array([[epoch.progress for epoch in row] for row in rows])
        self.ends: list[float] = progress.min(axis=0).tolist()
        """Progress at the end of each epoch: the least of all batches."""
        self._iterations = np.array([[epoch.iterations for epoch in row] for row in rows])
        self._grads = np.array([[(epoch.grad_sqr, epoch.grad_var) for epoch in row] for row in rows])
        self._rates: dict[int, list[float]] = {}

    def epoch_at(self, progress: float) -> int:
        """Return the epoch, from 0, that is in course; the last one where all are done."""
        return min(bisect_right(self.ends, progress * (1.0 + ROUNDING)), len(self.ends) - 1)

    def statistics(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return squared norm and variance of the gradients. Raises JobsError for a batch out of the measured ones."""
        sqr, var = self._at(self._grads[:, epoch], batch)
        return float(sqr), float(var)

    def gains(self, batch: int) -> list[float]:
        """Return the progress of a step of a batch in each epoch."""
        if batch not in self._rates:
            grads = self._at(self._grads, batch)
            self._rates[batch] = gain(batch / self.batches[0], grads[:, 0], grads[:, 1]).tolist()
        return self._rates[batch]

    def iterations(self, batch: int) -> Floats:
        """Return the steps of a batch until each epoch has ended."""
        return self._at(self._iterations, batch)

    def _at(self, values: Floats, batch: int) -> Floats:
        """Return values, of shape (batches, ...), at a batch."""
        self.check(batch)
        low = bisect_right(self.batches, batch) - 1
        below = self.batches[low]
        found: Floats = values[low]
        if batch > below:
            above = self.batches[low + 1]
            found = ((batch - below) * values[low + 1] + (above - batch) * found) / (above - below)
        return found

    def check(self, batch: int) -> None:
        """Raise JobsError for a batch out of the measured ones."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            rule = f"a batch of {batch}, where {self.batches[0]} to {self.batches[-1]} were measured"
            raise JobsError("measured", rule, "choose a batch between them")


def gain(scale: Floats | float, sqr: Floats | float, var: Floats | float) -> Floats:
    """Return the progress of a step of ``scale`` times the least batch; 1 where gradients are 0."""
    below = np.asarray(var / scale + sqr)
    found: Floats = np.ones(np.broadcast(below, var).shape)
    np.divide(np.asarray(var + sqr), below, out=found, where=below > 0.0)
    return found
