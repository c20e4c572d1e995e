"""Ids that batches look up: tables with Zipf popularity, drawn batch by batch.

Rows of all tables are numbered one after the other, so that one cache can hold rows of every table.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.policies import Ints


class Drift(Struct, frozen=True, kw_only=True):
    """How popularity changes: after every so many batches a ``fraction`` of the rows, drawn, change ranks at random.

    They are two rows at least, if the table has as many.
    """

    every: int
    fraction: float


class Table(Struct, frozen=True, kw_only=True):
    """An embedding table: its rows, the lookups of each sample in it, and the Zipf exponent of its rows' popularity.

    ``drift``: how popularity changes; None: it does not.
    """

    name: str
    num_rows: int
    num_lookups: int
    zipf: float
    drift: Drift | None = None

    def popularity(self) -> NDArray[np.float64]:
        """Return the probability of each rank, the most popular first: proportional to ``rank ** -zipf``."""
        weights = np.arange(1, self.num_rows + 1, dtype=np.float64) ** -self.zipf
        popularity: NDArray[np.float64] = weights / weights.sum()
        return popularity


_DRAWN_AT_ONCE: Final = 1 << 17
"""Ids that are drawn together, to spend less time on many small tables."""


_DRIFTING: Final = 1
"""Tells draws of drift from draws of ids."""


class Ids(Protocol):
    """Batches of ids, and how often each row is read."""

    first_rows: Ints
    """The number of each table's first row, and the number of all rows."""

    @property
    def num_rows(self) -> int:
        """Return the rows of all tables."""

    def lookups_per_sample(self) -> NDArray[np.float64]:
        """Return the lookups of each row by one sample, in the mean."""

    def batches(self, num_batches: int, batch_size: int, worker: int = 0) -> Iterator[Ints]:
        """Return a worker's batches of ids, table after table."""


def id_source(tables: Sequence[Table], seed: int, recorded: Ints | None = None, num_workers: int = 1) -> Ids:
    """Return a source of ids: those of a record, if there is one, or drawn ones.

    ``recorded``: the row of each table that each sample reads, [samples, tables]; ``num_workers`` share the samples.
    """
    return IdSource(tables, seed) if recorded is None else RecordedIds(tables, recorded, num_workers)


class _Cumulative:
    """The cumulative popularity of ranks, and for equal pieces of 0 to 1 the rank at which each begins.

    A number that lies in a piece of one rank alone needs no search.
    """

    def __init__(self, popularity: NDArray[np.float64]) -> None:
        self._sums = np.cumsum(popularity)
        self._num_pieces = 1 << min(int(4 * len(popularity)).bit_length(), 20)
        begins = np.arange(self._num_pieces + 1) / self._num_pieces
        self._first_ranks = np.searchsorted(self._sums, begins, side="right").astype(np.int32)

    def search(self, draws: NDArray[np.float64]) -> Ints:
        """Return ``np.searchsorted(sums, draws, side="right")`` for numbers from 0 to below 1."""
        pieces = (draws * self._num_pieces).astype(np.int64)
        ranks = self._first_ranks[pieces].astype(np.int64)
        is_open = ranks != self._first_ranks[pieces + 1]
        ranks[is_open] = np.searchsorted(self._sums, draws[is_open], side="right")
        return ranks


class IdSource:
    """Draws batches of ids. Which row of a table is popular is drawn too: its number says nothing of its rank."""

    def __init__(self, tables: Sequence[Table], seed: int) -> None:
        self._seed = seed
        self.first_rows = np.cumsum([0, *(table.num_rows for table in tables)])
        self._tables = tuple(tables)
        generators = [np.random.default_rng([seed, place]) for place in range(len(tables))]
        shuffled = zip(tables, self.first_rows[:-1], generators, strict=True)
        self._row_of_rank = [first + rng.permutation(table.num_rows) for table, first, rng in shuffled]
        self._after_ranks = [rng.bit_generator.state for rng in generators]
        self._cumulative = [_Cumulative(table.popularity()) for table in tables]

    @property
    def num_rows(self) -> int:
        """Return the rows of all tables."""
        return int(self.first_rows[-1])

    def lookups_per_sample(self) -> NDArray[np.float64]:
        """Return the expected lookups of each row by one sample: what a pass over endless data would count.

        With drift, over data like the first batches.
        """
        expected = np.empty(self.num_rows)
        for table, rows in zip(self._tables, self._row_of_rank, strict=True):
            expected[rows] = table.num_lookups * table.popularity()
        return expected

    def batches(self, num_batches: int, batch_size: int, worker: int = 0) -> Iterator[NDArray[np.int64]]:
        """Return a worker's batches of ids, table after table, the same whenever they are asked for.

        They are drawn by inversion of the cumulative popularity.
        """
        generators, row_of_rank = self._generators_of(worker), list(self._row_of_rank)
        per_batch = batch_size * sum(table.num_lookups for table in self._tables)
        at_once = max(_DRAWN_AT_ONCE // per_batch, 1)
        first = 0
        while first < num_batches:
            last = min([first + at_once, num_batches, *self._ends_after(first)])
            yield from self._draw(last - first, batch_size, generators, row_of_rank)
            self._drift(last, row_of_rank)
            first = last

    def _ends_after(self, batch: int) -> Iterator[int]:
        """Yield the next batch, after this one, from which each table's popularity is another."""
        for table in self._tables:
            if table.drift is not None:
                yield (batch // table.drift.every + 1) * table.drift.every

    def _drift(self, batch: int, row_of_rank: list[Ints]) -> None:
        """Change the ranks of rows of the tables whose popularity is another from this batch on, for all workers."""
        for place, table in enumerate(self._tables):
            if table.drift is None or batch % table.drift.every:
                continue
            rng = np.random.default_rng([self._seed, place, batch, _DRIFTING])
            count = min(max(round(table.drift.fraction * table.num_rows), 2), table.num_rows)
            ranks = rng.choice(table.num_rows, count, replace=False)
            row_of_rank[place] = row_of_rank[place].copy()
            row_of_rank[place][ranks] = rng.permutation(row_of_rank[place][ranks])

    def _draw(
        self,
        num_batches: int,
        batch_size: int,
        generators: Sequence[np.random.Generator],
        row_of_rank: Sequence[Ints],
    ) -> Ints:
        """Return batches [num_batches, ids]; the numbers do not depend on how many are drawn at once."""
        drawn = []
        parts = zip(self._tables, row_of_rank, self._cumulative, generators, strict=True)
        for table, rows, cumulative, rng in parts:
            draws = rng.random((num_batches, batch_size * table.num_lookups))
            drawn.append(rows[np.minimum(cumulative.search(draws), table.num_rows - 1)])
        return np.concatenate(drawn, axis=1)

    def _generators_of(self, worker: int) -> list[np.random.Generator]:
        """Return a generator per table; those of the first worker go on where popular rows have been drawn."""
        if worker == 0:
            generators = [np.random.default_rng() for _ in self._tables]
            for generator, state in zip(generators, self._after_ranks, strict=True):
                generator.bit_generator.state = state
            return generators
        return [np.random.default_rng([self._seed, place, worker]) for place in range(len(self._tables))]


class RecordedIds:
    """Batches of recorded samples, in their order: workers take turns, a batch each."""

    def __init__(self, tables: Sequence[Table], recorded: Ints, num_workers: int) -> None:
        self.first_rows = np.cumsum([0, *(table.num_rows for table in tables)])
        self._ids = recorded + self.first_rows[:-1]
        self._num_workers = num_workers

    @property
    def num_rows(self) -> int:
        """Return the rows of all tables."""
        return int(self.first_rows[-1])

    def lookups_per_sample(self) -> NDArray[np.float64]:
        """Return the lookups of each row by one sample: a count over all samples."""
        counted: NDArray[np.float64] = np.bincount(self._ids.ravel(), minlength=self.num_rows) / len(self._ids)
        return counted

    def batches(self, num_batches: int, batch_size: int, worker: int = 0) -> Iterator[Ints]:
        """Return a worker's batches of ids, table after table."""
        for batch in range(num_batches):
            first = (batch * self._num_workers + worker) * batch_size
            yield self._ids[first : first + batch_size].T.ravel()
