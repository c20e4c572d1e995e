"""Training of embedding tables whose rows are cached on a device, and of the same tables without a cache.

The model is a logistic regression over the sums of each table's rows, trained by SGD on drawn labels; only touched rows
change. With and without the cache the same operations add up the same numbers in the same order.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from backends.execution.embedding import EmbeddingExecution, EmbeddingRequest
from backends.execution.errors import ExecutionError
from backends.torch.embedding.cached_rows import CachedRows, Moved
from backends.torch.embedding.model import RowModel, differing_bits
from sim.embedding.ids import id_source
from sim.embedding.run import filled_cache


class _Timed(Struct, frozen=True):
    """Where the time of a batch went, in seconds."""

    cache_s: float
    batch_s: float


def train(request: EmbeddingRequest) -> EmbeddingExecution:
    """Return what a training with a cache counted, and how its weights differ from one without.

    Raises CacheTooSmallError for a batch that the cache cannot hold, ExecutionError without the device.
    """
    if request.device == "cuda" and not torch.cuda.is_available():
        raise ExecutionError("this machine has no CUDA device")
    device, host = torch.device(request.device), torch.device("cpu")
    source = id_source(request.tables, request.seed, request.recorded)
    cache = filled_cache(request.cache, source.lookups_per_sample(), request.seed)
    weight = RowModel.of(request).initial_rows(host)
    rows = CachedRows(weight.pin_memory() if request.device == "cuda" else weight, cache, device)
    dense, moved, timed = RowModel.of(request).initial_dense(device), list[Moved](), list[_Timed]()
    for batch, ids in enumerate(source.batches(request.num_batches, request.batch_size)):
        began_s = perf_counter()
        places, found = rows.prepare(ids)
        _synchronise(device)
        prepared_s = perf_counter()
        _sgd(rows.buffer, dense, places, request, batch)
        _synchronise(device)
        moved.append(found)
        timed.append(_Timed(prepared_s - began_s, perf_counter() - began_s))
    rows.flush()
    differing = _differing(request, (rows.weight, dense), device) if request.check else None
    return _counted(moved, timed, weight.numel() + dense.numel(), differing)


def train_uncached(request: EmbeddingRequest, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows of all tables and the dense weights, trained with every row on the device."""
    source = id_source(request.tables, request.seed, request.recorded)
    weight = RowModel.of(request).initial_rows(device)
    dense = RowModel.of(request).initial_dense(device)
    for batch, ids in enumerate(source.batches(request.num_batches, request.batch_size)):
        _sgd(weight, dense, torch.from_numpy(ids).to(device), request, batch)
    return weight, dense


def _sgd(weight: Tensor, dense: Tensor, places: Tensor, request: EmbeddingRequest, batch: int) -> None:
    """Update rows and dense weights in place by one batch; ``places``: the row of ``weight`` for each id."""
    found = RowModel.of(request).gradients(weight, dense, places, [batch])
    weight.index_add_(0, found.rows, found.of_rows, alpha=-request.learning_rate)
    dense.add_(found.of_dense, alpha=-request.learning_rate)


def _differing(request: EmbeddingRequest, found: tuple[Tensor, Tensor], device: torch.device) -> int:
    """Return how many elements differ in any bit from those of the training without a cache."""
    return sum(differing_bits(a, b) for a, b in zip(found, train_uncached(request, device), strict=True))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _counted(
    moved: Sequence[Moved], timed: Sequence[_Timed], num_weights: int, differing: int | None
) -> EmbeddingExecution:
    def column(count: Callable[[Moved], int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([count(batch) for batch in moved], dtype=np.int64)

    return EmbeddingExecution(
        hits=column(lambda batch: batch.hits),
        rows_in=column(lambda batch: batch.rows_in),
        rows_out=column(lambda batch: batch.rows_out),
        in_bytes=column(lambda batch: batch.in_bytes),
        out_bytes=column(lambda batch: batch.out_bytes),
        cache_s=np.array([batch.cache_s for batch in timed]),
        batch_s=np.array([batch.batch_s for batch in timed]),
        num_weights=num_weights,
        differing_weights=differing,
    )
