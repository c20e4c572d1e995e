"""Tables over ranks, and what one batch finds in each rank's cache: the data of a step's plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache, Prepared
from sim.embedding.ids import Ids, Table, id_source
from sim.embedding.policies import Ints
from sim.embedding.run import CacheSpec, filled_cache

Sharding = Literal["table", "row", "column"]
"""``table``: a rank has whole tables; ``row``: a range of the rows of every table; ``column``: columns of all rows."""


class RankBatch(Struct, frozen=True, kw_only=True, eq=False):
    """A rank's part of a batch, in numbers of its own rows, which ascend as those of all rows do.

    ``owned``: its rows, of ``num_global_rows``. ``ids``: the row of each lookup; ``bags``: the sum that it belongs to,
    sample after sample, and in a sample table after table. ``found``: what its cache finds and moves; None: no cache.
    ``cached_rows``, ``cached_slots``: the rows in its cache before the batch.
    """

    owned: Ints
    num_global_rows: int
    num_slots: int
    ids: Ints
    bags: Ints
    num_unique: int
    found: Prepared | None
    cached_rows: Ints
    cached_slots: Ints

    @property
    def num_rows(self) -> int:
        """Return the rows that the rank has."""
        return len(self.owned)

    @property
    def num_lookups(self) -> int:
        """Return its lookups."""
        return len(self.ids)

    @property
    def num_cached(self) -> int:
        """Return the rows in its cache before the batch."""
        return len(self.cached_rows)

    @property
    def num_in(self) -> int:
        """Return the rows that are fetched."""
        return 0 if self.found is None else len(self.found.rows_in)

    @property
    def num_out(self) -> int:
        """Return the rows that are written back."""
        return 0 if self.found is None else len(self.found.rows_out)

    @property
    def num_hits(self) -> int:
        """Return the lookups that find their row; all, where there is no cache."""
        return self.num_lookups if self.found is None else int(self.found.lookups[self.found.is_hit].sum())


def tables_of_ranks(tables: Sequence[Table], num_ranks: int) -> list[list[int]]:
    """Return the places of each rank's tables: the largest first, each to the rank with the fewest lookups, then rows.

    So tables of equal lookups are dealt evenly.
    """
    dealt = [list[int]() for _ in range(num_ranks)]
    load = [(0, 0)] * num_ranks
    for place in sorted(range(len(tables)), key=lambda place: -tables[place].num_rows):
        rank = min(range(num_ranks), key=lambda rank: (load[rank], rank))
        dealt[rank].append(place)
        load[rank] = load[rank][0] + tables[place].num_lookups, load[rank][1] + tables[place].num_rows
    return [sorted(places) for places in dealt]


def rank_batches(
    tables: Sequence[Table],
    cache: CacheSpec | None,
    shards: tuple[Sharding, int],
    batches: range,
    batch_size: int,
    seed: int,
    recorded: Ints | None = None,
    source: Ids | None = None,
) -> list[list[RankBatch]]:
    """Return each rank's part of each of ``batches``, after all batches before them. Raises CacheTooSmallError.

    ``cache``: the slots of all ranks together, of which each has as many as its part of the rows; None: every row is on
    the device. ``shards``: the sharding, and the number of ranks. By column all ranks do the same, and the only part is
    that of each; its slots are those of all rows. ``source``: that of these tables, if there is one already.
    """
    source = source or id_source(tables, seed, recorded)
    expected = source.lookups_per_sample()
    ranks = [
        _Rank(owned, places, None if cache is None else _filled(cache, owned, expected, seed))
        for owned, places in _shares(tables, source.first_rows, *shards)
    ]
    table_of, sample_of = _places(tables, batch_size)
    found = []
    for number, ids in enumerate(source.batches(batches.stop, batch_size)):
        parts = [rank.part(ids, table_of, sample_of, source.num_rows, whole=number in batches) for rank in ranks]
        found.append([part for part in parts if part is not None])
    return found[batches.start :]


def _places(tables: Sequence[Table], batch_size: int) -> tuple[Ints, Ints]:
    """Return the place of the table, and the sample, of each lookup of a batch."""
    table_of = np.repeat(np.arange(len(tables)), [batch_size * table.num_lookups for table in tables])
    return table_of, np.concatenate([np.repeat(np.arange(batch_size), table.num_lookups) for table in tables])


def served_batch(tables: Sequence[Table], ids: Ints, batch_size: int, num_global_rows: int) -> RankBatch:
    """Return a batch whose different rows, and no others, come to the device from elsewhere.

    ``ids``: its lookups, table after table.
    """
    rows, numbers = np.unique(ids, return_inverse=True)
    table_of, sample_of = _places(tables, batch_size)
    nothing = np.empty(0, dtype=np.int64)
    return RankBatch(
        owned=rows,
        num_global_rows=num_global_rows,
        num_slots=0,
        ids=numbers,
        bags=sample_of * len(tables) + table_of,
        num_unique=len(rows),
        found=None,
        cached_rows=nothing,
        cached_slots=nothing,
    )


@dataclass(slots=True)
class _Rank:
    """A rank's rows, ascending, the places of its tables, and its cache."""

    owned: Ints
    tables: Sequence[int]
    cache: BatchCache | None

    def part(
        self, ids: Ints, table_of: Ints, sample_of: Ints, num_global_rows: int, *, whole: bool
    ) -> RankBatch | None:
        """Serve the rank's lookups of a batch; return its part, or None unless the ``whole`` part is asked for."""
        places = np.minimum(np.searchsorted(self.owned, ids), len(self.owned) - 1)
        is_mine = self.owned[places] == ids
        own, cached = places[is_mine], np.empty(0, dtype=np.int64)
        if self.cache is not None and whole:
            cached = self.cache.row_of_slot.copy()
        found = None if self.cache is None else self.cache.prepare(own)
        if not whole:
            return None
        slots = np.flatnonzero(cached >= 0)
        number = np.zeros(max(self.tables) + 1, dtype=np.int64)
        number[self.tables] = np.arange(len(self.tables))
        return RankBatch(
            owned=self.owned,
            num_global_rows=num_global_rows,
            num_slots=len(cached),
            ids=own,
            bags=sample_of[is_mine] * len(self.tables) + number[table_of[is_mine]],
            num_unique=len(np.unique(own)) if found is None else len(found.rows),
            found=found,
            cached_rows=cached[slots],
            cached_slots=slots,
        )


def _filled(cache: CacheSpec, owned: Ints, expected: NDArray[np.float64], seed: int) -> BatchCache:
    """Return a rank's cache, with its part of the slots."""
    num_slots = max(cache.num_slots * len(owned) // len(expected), 1)
    return filled_cache(replace(cache, num_slots=num_slots), expected[owned], seed)


def _shares(
    tables: Sequence[Table], first_rows: Ints, sharding: Sharding, num_ranks: int
) -> Iterator[tuple[Ints, list[int]]]:
    """Yield each rank's rows, and the places of the tables that it sums rows of."""
    every = list(range(len(tables)))
    if sharding == "column" or num_ranks == 1:
        yield np.arange(first_rows[-1]), every
        return
    if sharding == "table":
        for places in tables_of_ranks(tables, num_ranks):
            yield np.concatenate([np.arange(first_rows[place], first_rows[place + 1]) for place in places]), places
        return
    for rank in range(num_ranks):
        bounds = [(np.diff(first_rows) * part // num_ranks) + first_rows[:-1] for part in (rank, rank + 1)]
        yield np.concatenate([np.arange(begin, end) for begin, end in zip(*bounds, strict=True)]), every
