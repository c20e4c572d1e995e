"""The request to train cached embedding tables, and its result. They need no torch."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from backends.execution.request import DeviceKind
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec

Ints = NDArray[np.int64]


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """A training of embedding tables by SGD: tables in host memory, a cache of rows on a device, and batches.

    ``check``: train the tables a second time without a cache, and compare all weights bit by bit.
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


class EmbeddingExecution(Struct, frozen=True, kw_only=True):
    """The counts and times of a training with a cache, one array element per batch.

    ``hits``: lookups that found their row in the cache on the device.
    ``rows_in``, ``rows_out``, ``in_bytes``, ``out_bytes``: rows and bytes copied to the device and back.
    ``cache_s``, ``batch_s``: seconds to bring all rows of the batch to the device, and of the whole batch.
    ``differing_weights``: number of weights whose bits differ from the run without a cache; None without such a run.
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
