"""A cache under a stream of batches: hits and moved rows, per table and over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache
from sim.embedding.ids import IdSource, Table
from sim.embedding.policies import PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Slots of the cache, its policy, and the fraction of slots that is filled before the first batch."""

    num_slots: int
    policy: PolicyName
    warm_up: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRun:
    """Counts per batch, arrays of one length; ``lookups`` and ``hits`` have a column per table."""

    lookups: NDArray[np.int64]
    hits: NDArray[np.int64]
    unique_rows: NDArray[np.int64]
    unique_hits: NDArray[np.int64]
    rows_in: NDArray[np.int64]
    rows_out: NDArray[np.int64]
    static_hit_rate: float
    """Hit rate of a cache that always holds the most popular rows, by their popularity alone: the sum of it."""


def run_cache(tables: Sequence[Table], cache: CacheSpec, num_batches: int, batch_size: int, seed: int) -> CacheRun:
    """Return what each batch found in the cache and moved. Raises CacheTooSmallError."""
    source = IdSource(tables, seed)
    expected = source.lookups_per_sample()
    slots = BatchCache(cache.num_slots, cache.policy, expected, seed)
    slots.warm_up(cache.warm_up)
    by_table = np.zeros((2, num_batches, len(tables)), dtype=np.int64)
    totals = np.zeros((4, num_batches), dtype=np.int64)
    for batch, ids in enumerate(source.batches(num_batches, batch_size)):
        found = slots.prepare(ids)
        table = np.searchsorted(source.first_rows, found.rows, side="right") - 1
        by_table[0, batch] = np.bincount(table, found.lookups, len(tables))
        by_table[1, batch] = np.bincount(table[found.is_hit], found.lookups[found.is_hit], len(tables))
        moved = len(found.rows_in), len(found.rows_out)
        totals[:, batch] = len(found.rows), np.count_nonzero(found.is_hit), *moved
    num_popular = min(cache.num_slots, len(expected))
    most_popular = np.partition(-expected, num_popular - 1)[:num_popular]
    return CacheRun(
        lookups=by_table[0],
        hits=by_table[1],
        unique_rows=totals[0],
        unique_hits=totals[1],
        rows_in=totals[2],
        rows_out=totals[3],
        static_hit_rate=float(-most_popular.sum() / expected.sum()),
    )
