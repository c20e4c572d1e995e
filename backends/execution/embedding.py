"""A training of cached embedding tables to execute, and its counts. They need no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.execution.request import DeviceKind
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Tables in host memory, the cache of their rows on a device, and the batches that train them by SGD.

    ``check``: train the tables once more without a cache, and compare all weights bit by bit.
    """

    tables: Sequence[Table]
    embedding_dim: int
    cache: CacheSpec
    num_batches: int
    batch_size: int
    seed: int
    recorded: Ints | None = None
    """The row of each table that each sample reads, [samples, tables]; None: ids are drawn."""
    learning_rate: float = 0.1
    device: DeviceKind = "cpu"
    check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingExecution:
    """What was counted in each batch where rows were found and moved; arrays of one length.

    ``hits``: lookups that found their row on the device, by the row numbers kept there. ``rows_in``, ``rows_out``,
    ``in_bytes``, ``out_bytes``: rows and bytes of the tensors that were copied to the device and back.
    ``cache_s``, ``batch_s``: the time to have all rows on the device, and that of the whole batch.
    ``differing_weights``: elements of all parameters whose bits are not those of the run without a cache; None if
    there was none.
    """

    hits: Ints
    rows_in: Ints
    rows_out: Ints
    in_bytes: Ints
    out_bytes: Ints
    cache_s: NDArray[np.float64]
    batch_s: NDArray[np.float64]
    num_weights: int
    differing_weights: int | None
