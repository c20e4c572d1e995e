"""How a running job trains: the speed that it has from now on, until its next epoch."""

from typing import NamedTuple, Protocol

from sim.jobs.speed.batches import Goodput

Counts = tuple[int, ...]
"""GPUs of a job on each of its nodes."""


class Pace(NamedTuple):
    """Work in a second, and the work at which this changes."""

    work_per_s: float
    until: float


class Trainer(Protocol):
    """The training of one job."""

    @property
    def adapts(self) -> bool:
        """Return whether it chooses its batch anew at every decision of the policy, not only in a new epoch."""

    @property
    def estimate(self) -> Goodput | None:
        """Return what it knows of its own speed from what it has measured so far; None where it measures nothing."""

    def pace(self, counts: Counts, done: float) -> Pace:
        """Train on from some work on some nodes, and return the speed. What adapts chooses its batch, and measures."""


class Epochwise(Protocol):
    """A training whose speed changes with its epochs, of which each has an amount of work of its own."""

    @property
    def epoch_ends(self) -> list[float]:
        """Return the work at the end of each epoch."""

    def trainer(self) -> Trainer:
        """Return the trainer of a job that begins."""

    def left_s(self, done: float, num_gpus: int, num_nodes: int) -> float:
        """Return the expected time until it is done, from some work on."""
