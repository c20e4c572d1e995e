"""Dense weights of workers with parameter servers: summed among the workers, or pushed to the server.

In every step a worker calls ``pull`` once it has its rows, ``begin`` once it has its gradient, and ``end`` once it has
pushed its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from backends.torch.embedding.messages import SERVER, received, send


class DenseLayers(Protocol):
    """A worker's dense weights."""

    weights: Tensor

    def pull(self) -> None:
        """Bring the weights up to date, for a step."""

    def begin(self, gradient: Tensor) -> None:
        """Take the gradient of the step."""

    def end(self) -> None:
        """Let the weights change by it, wherever they lie."""


@dataclass(slots=True)
class SummedLayers:
    """Weights that every worker has, and changes by the sum of all workers' gradients: HET's hybrid.

    The sum is an all_reduce in a stated order: each worker gets one part of all gradients, adds it up worker by worker,
    and sends it to all. So it has the same bits on every worker, and those of a loop over workers in one process. Parts
    are on their way while rows are pushed. ``group``: all workers. Errors: torch's, where one of them has ended.
    """

    weights: Tensor
    learning_rate: float
    group: dist.ProcessGroup
    _parts: Tensor = field(init=False)
    _arrival: dist.Work | None = field(init=False, default=None)

    def pull(self) -> None:
        """Do nothing: the weights are here."""

    def begin(self, gradient: Tensor) -> None:
        """Send each worker its part of this worker's gradient."""
        num_workers = dist.get_world_size(self.group)
        padded = gradient.new_zeros(num_workers, -(-gradient.numel() // num_workers))
        padded.view(-1)[: gradient.numel()] = gradient
        self._parts = torch.empty_like(padded)
        self._arrival = dist.all_to_all_single(self._parts, padded, group=self.group, async_op=True)

    def end(self) -> None:
        """Add up this worker's part, collect the others, and change the weights."""
        assert self._arrival is not None, "begin comes first"
        self._arrival.wait()
        summed = self._parts.new_empty(self._parts.numel())
        dist.all_gather_single(summed, sum_of(list(self._parts)), group=self.group)
        change(self.weights, summed[: self.weights.numel()], self.learning_rate)


@dataclass(slots=True)
class ServedLayers:
    """Weights that the server has: they come with a step's rows, and its gradient goes there behind its rows."""

    weights: Tensor
    _gradient: Tensor = field(init=False)

    def pull(self) -> None:
        """Take the weights that the server sends."""
        self.weights = received(tuple(self.weights.shape), SERVER, self.weights.dtype)

    def begin(self, gradient: Tensor) -> None:
        """Keep the gradient until the rows are pushed."""
        self._gradient = gradient

    def end(self) -> None:
        """Send the gradient to the server."""
        send(self._gradient, SERVER)


def sum_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return the sum of gradients, added up in this order."""
    return reduce(torch.add, gradients)


def change(weights: Tensor, gradient: Tensor, learning_rate: float) -> None:
    """Apply a gradient to weights by SGD."""
    weights.add_(gradient * -learning_rate)
