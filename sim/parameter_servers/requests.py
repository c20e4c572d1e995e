"""Which rows workers ask for, get and push: under HET's protocol, or without a cache."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from sim.embedding.policies import Ints


class Requests(Protocol):
    """The requests of all workers. Of a worker's step ``ask``, ``answer``, ``write`` and ``apply`` follow each other.

    ``HetRequests`` (``sim/embedding/het_run.py``) are those of HET.
    """

    def ask(self, worker: int) -> Ints:
        """Return the different rows of a worker's next batch."""

    def answer(self, worker: int) -> Ints:
        """Return the rows that the servers, as they are now, send."""

    def write(self, worker: int, step: int) -> Ints:
        """Return the rows that a worker pushes after this step."""

    def apply(self, worker: int) -> None:
        """Let the servers apply what a worker has pushed."""


class UncachedRequests:
    """Workers without a cache: every different row of a batch is sent, and its gradient pushed."""

    def __init__(self, batches: Sequence[Iterator[Ints]]) -> None:
        self._batches = batches
        self._rows = [np.empty(0, dtype=np.int64)] * len(batches)

    def ask(self, worker: int) -> Ints:
        """Return the different rows of a worker's next batch."""
        self._rows[worker] = np.unique(next(self._batches[worker]))
        return self._rows[worker]

    def answer(self, worker: int) -> Ints:
        """Return all rows that were asked for."""
        return self._rows[worker]

    def write(self, worker: int, step: int) -> Ints:
        """Return all rows of the batch."""
        del step
        return self._rows[worker]

    def apply(self, worker: int) -> None:
        """Keep no account."""
