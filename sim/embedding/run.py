"""A cache under a stream of batches: hits and moved rows, per table and over time."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache, Future, Prepared
from sim.embedding.ids import Ids, Table, id_source
from sim.embedding.policies import Ints, PolicyName
from sim.embedding.single_lookups import LookupLru


class CacheSpec(Struct, frozen=True, kw_only=True):
    """Slots of the cache, its policy, and the fraction of slots that is filled before the first batch."""

    num_slots: int
    policy: PolicyName
    warm_up: float
    served: Literal["batch", "lookup"] = "batch"
    """``batch``: all rows of a batch are there together; ``lookup``: one by one, under LRU alone."""

    @property
    def num_warm(self) -> int:
        """Return the slots that are filled before the first batch, rounded up."""
        return int(np.ceil(self.warm_up * self.num_slots))


class CacheRun(Struct, frozen=True, kw_only=True):
    """Counts per batch, arrays of one length; ``lookups`` and ``hits`` have a column per table."""

    lookups: NDArray[np.int64]
    hits: NDArray[np.int64]
    unique_rows: NDArray[np.int64]
    unique_hits: NDArray[np.int64]
    rows_in: NDArray[np.int64]
    rows_out: NDArray[np.int64]
    static_hit_rate: float
    """Hit rate of a cache that always holds the most popular rows, by their popularity alone: the sum of it."""


class Counter:
    """Counts what batches find, per batch and per table."""

    def __init__(self, source: Ids, num_batches: int) -> None:
        self._first_rows = source.first_rows
        self._num_tables = len(source.first_rows) - 1
        self._by_table = np.zeros((2, num_batches, self._num_tables), dtype=np.int64)
        self._totals = np.zeros((4, num_batches), dtype=np.int64)

    def add(self, batch: int, found: Prepared, rows_in: int, rows_out: int) -> None:
        """Add what a batch, or one worker's part of it, has found and moved."""
        bounds = np.searchsorted(found.rows, self._first_rows)  # rows ascend, table after table
        for place, counts in enumerate((found.lookups, found.lookups * found.is_hit)):
            self._by_table[place, batch] += np.diff(np.concatenate(([0], np.cumsum(counts)))[bounds])
        self._totals[:, batch] += len(found.rows), int(np.count_nonzero(found.is_hit)), rows_in, rows_out

    def add_lookups(self, batch: int, ids: Ints, is_hit: NDArray[np.bool_], rows_in: int, rows_out: int) -> None:
        """Add a batch whose lookups were served one by one; a row is found if its first lookup is a hit."""
        table = np.searchsorted(self._first_rows, ids, side="right") - 1
        self._by_table[0, batch] = np.bincount(table, minlength=self._num_tables)
        self._by_table[1, batch] = np.bincount(table[is_hit], minlength=self._num_tables)
        _, firsts = np.unique(ids, return_index=True)
        self._totals[:, batch] = len(firsts), int(np.count_nonzero(is_hit[firsts])), rows_in, rows_out

    def counted(self, static_hit_rate: float) -> CacheRun:
        """Return all counts."""
        return CacheRun(
            lookups=self._by_table[0],
            hits=self._by_table[1],
            unique_rows=self._totals[0],
            unique_hits=self._totals[1],
            rows_in=self._totals[2],
            rows_out=self._totals[3],
            static_hit_rate=static_hit_rate,
        )


def run_cache(
    tables: Sequence[Table],
    cache: CacheSpec,
    num_batches: int,
    batch_size: int,
    seed: int,
    recorded: Ints | None = None,
    source: Ids | None = None,
) -> CacheRun:
    """Return what each batch found in the cache and moved. Raises CacheTooSmallError.

    ``recorded``: the row of each table that each sample reads; None: ids are drawn. ``source``: that of these tables,
    if there is one already.
    """
    source = source or id_source(tables, seed, recorded)
    expected = source.lookups_per_sample()
    batches = source.batches(num_batches, batch_size)
    if cache.served == "lookup":
        return _serve_lookups(source, cache, expected, batches, num_batches)
    slots, counter = filled_cache(cache, expected, seed), Counter(source, num_batches)
    if cache.policy == "belady":
        slots.foresee(Future.of(source.batches(num_batches, batch_size), source.num_rows))
    for batch, ids in enumerate(batches):
        found = slots.prepare(ids)
        counter.add(batch, found, len(found.rows_in), len(found.rows_out))
    return counter.counted(static_hit_rate(cache.num_slots, expected))


def _serve_lookups(
    source: Ids, spec: CacheSpec, expected: NDArray[np.float64], batches: Iterable[Ints], num_batches: int
) -> CacheRun:
    """Return what lookups find that an LRU cache serves one by one; a row that comes and goes counts each time."""
    cache, counter = LookupLru(len(expected), spec.num_slots), Counter(source, num_batches)
    cache.serve(most_popular(expected, spec.num_warm))
    for batch, ids in enumerate(batches):
        num_before, is_hit = cache.num_cached, cache.serve(ids)
        num_in = int(np.count_nonzero(~is_hit))
        counter.add_lookups(batch, ids, is_hit, num_in, num_in - (cache.num_cached - num_before))
    return counter.counted(static_hit_rate(spec.num_slots, expected))


def filled_cache(cache: CacheSpec, expected: NDArray[np.float64], seed: int) -> BatchCache:
    """Return a cache before its first batch; ``expected``: how often each row is read."""
    slots = BatchCache(cache.num_slots, cache.policy, expected, seed)
    slots.warm_up(most_popular(expected, cache.num_warm))
    return slots


def most_popular(expected: NDArray[np.float64], num_rows: int) -> Ints:
    """Return the rows that are read most, ascending by number; of equals those of lower number."""
    num_rows = min(num_rows, len(expected))
    if num_rows == 0:
        return np.empty(0, dtype=np.int64)
    least = -np.partition(-expected, num_rows - 1)[num_rows - 1]
    more, equal = np.flatnonzero(expected > least), np.flatnonzero(expected == least)
    return np.sort(np.concatenate((more, equal[: num_rows - len(more)])))


def static_hit_rate(num_slots: int, expected: NDArray[np.float64]) -> float:
    """Return the hit rate of the rows that are read most, always in the cache."""
    num_popular = min(num_slots, len(expected))
    most_popular = np.partition(-expected, num_popular - 1)[:num_popular]
    return float(-most_popular.sum() / expected.sum())
