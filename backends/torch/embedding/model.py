"""The model over embedding tables: a logistic regression over the sums of each table's rows, and its gradients."""

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from backends.torch.values.hashing import key_of
from sim.embedding.ids import Table


class Gradients(Struct, frozen=True):
    """Gradients of a batch: ``rows``: the different rows, ascending, ``of_rows`` [rows, dim] and ``of_dense``."""

    rows: Tensor
    of_rows: Tensor
    of_dense: Tensor


class TrainedTables(Protocol):
    """The part of a request that says which model is trained."""

    @property
    def tables(self) -> Sequence[Table]:
        """Return the tables."""

    @property
    def embedding_dim(self) -> int:
        """Return the elements of a row."""

    @property
    def batch_size(self) -> int:
        """Return the samples of a batch."""

    @property
    def seed(self) -> int:
        """Return the seed of weights and labels."""


class RowModel(Struct, frozen=True, kw_only=True):
    """Tables, the elements of a row, and the samples of a batch."""

    tables: Sequence[Table]
    embedding_dim: int
    batch_size: int
    seed: int

    @classmethod
    def of(cls, request: TrainedTables) -> Self:
        """Return the model that a request trains."""
        return cls(
            tables=request.tables,
            embedding_dim=request.embedding_dim,
            batch_size=request.batch_size,
            seed=request.seed,
        )

    def gradients(self, weight: Tensor, dense: Tensor, places: Tensor, draw: Sequence[int]) -> Gradients:
        """Return the gradients of a batch; ``places``: the row of ``weight`` for each id.

        ``draw``: numbers that name the batch, for its labels. The same operations add up the same numbers in the same
        order wherever the rows lie.
        """
        looked_up, dense_leaf = weight[places].requires_grad_(), dense.detach().requires_grad_()
        labels = np.random.default_rng([self.seed, *draw]).integers(0, 2, self.batch_size)
        logits = torch.cat(self._sums_by_table(looked_up), dim=1) @ dense_leaf
        target = torch.from_numpy(labels).to(logits.device, logits.dtype)
        torch.autograd.backward(binary_cross_entropy_with_logits(logits, target))
        assert looked_up.grad is not None
        assert dense_leaf.grad is not None
        rows, inverse = torch.unique(places, return_inverse=True)
        summed = weight.new_zeros(len(rows), weight.shape[1]).index_add_(0, inverse, looked_up.grad)
        return Gradients(rows, summed, dense_leaf.grad)

    def initial_rows(self, device: torch.device) -> Tensor:
        """Return the rows of all tables before the first batch."""
        num_rows = sum(table.num_rows for table in self.tables)
        return self._initial("rows", (num_rows, self.embedding_dim), device)

    def initial_dense(self, device: torch.device) -> Tensor:
        """Return the dense weights before the first batch."""
        return self._initial("dense", (len(self.tables) * self.embedding_dim,), device)

    def _sums_by_table(self, looked_up: Tensor) -> list[Tensor]:
        """Return [batch, dim] of each table: the sums of its rows of a sample."""
        parts = torch.split(looked_up, [self.batch_size * table.num_lookups for table in self.tables])
        return [part.view(self.batch_size, -1, self.embedding_dim).sum(dim=1) for part in parts]

    def _initial(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return normal numbers of deviation 0.1 in 32 bits, the same on every device."""
        generator = torch.Generator().manual_seed(key_of("embedding", self.seed, name))
        return torch.normal(0.0, 0.1, shape, generator=generator).to(device)


def differing_bits(found: Tensor, expected: Tensor) -> int:
    """Return how many elements differ in any bit."""
    return int((found.cpu().view(torch.int32) != expected.cpu().view(torch.int32)).sum())
