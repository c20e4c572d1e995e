"""A software cache of embedding rows, filled batch by batch, as Colossal-AI's cached embedding (arXiv:2208.05321).

All rows of a batch are in the cache together before the batch is computed. Rows that give way are always written back:
there is no mark for changed rows.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.errors import CacheTooSmallError
from sim.embedding.policies import COUNTED, MOST_COUNTED, QUEUED, RANKED, Ints, PolicyName
from sim.embedding.queue import CountedQueue, SlotQueue

_BEFORE_FIRST: Final = -1


class Prepared(Struct, frozen=True, kw_only=True):
    """What one batch found and moved.

    ``rows``: its different rows, ascending; ``lookups``: how often it reads each; ``slots``: where each lies now;
    ``is_hit``: whether each was in the cache. A lookup of a missing row counts as a miss however often the batch
    repeats it. ``rows_out``: rows that were written back, the least worth first, from ``slots_out``.
    """

    rows: Ints
    lookups: Ints
    slots: Ints
    is_hit: NDArray[np.bool_]
    rows_out: Ints
    slots_out: Ints

    @property
    def rows_in(self) -> Ints:
        """Return the rows that were fetched, ascending."""
        return self.rows[~self.is_hit]

    @property
    def slots_in(self) -> Ints:
        """Return the slots that the fetched rows went into."""
        return self.slots[~self.is_hit]


class Future(Struct, frozen=True):
    """When rows are read: ``first_used``: the first batch that reads each row; ``next_used``: of each batch's different
    rows, ascending, the next batch that reads it. Rows that no batch reads have a number beyond the last batch.
    """

    first_used: Ints
    next_used: Sequence[Ints]

    @classmethod
    def of(cls, batches: Iterable[Ints], num_rows: int) -> Self:
        """Return when the rows of these batches are read."""
        rows = [np.unique(ids) for ids in batches]
        read = np.full(num_rows, len(rows), dtype=np.int64)
        found = []
        for batch in reversed(range(len(rows))):
            found.append(read[rows[batch]])
            read[rows[batch]] = batch
        return cls(read, found[::-1])


def least_worth(worth: Sequence[NDArray[np.float64] | Ints], count: int) -> Ints:
    """Return the places of the ``count`` least, in ascending order; later arrays decide between equals.

    Only places that the first array leaves in question are sorted by the others.
    """
    first = worth[0]
    near = np.flatnonzero(first <= np.partition(first, count - 1)[count - 1])
    chosen: Ints = near[np.lexsort([values[near] for values in reversed(worth)])[:count]]
    return chosen


class BatchCache:
    """Slots for rows, and what the policy asks of each row that lies in one."""

    def __init__(self, num_slots: int, policy: PolicyName, frequency: NDArray[np.float64], seed: int) -> None:
        self._policy = policy
        self._frequency = frequency
        self._seed = seed
        self._batch = 0
        self._num_filled = 0
        self._slot_of_row = np.full(len(frequency), -1, dtype=np.int32)
        self.row_of_slot = np.full(num_slots, -1, dtype=np.int64)
        """The row in each slot, -1 in a free one."""
        self._uses = np.zeros(num_slots, dtype=np.int64)
        self._last_used = np.zeros(num_slots, dtype=np.int64)
        self._queue = SlotQueue(num_slots)
        self._counted = CountedQueue(num_slots, MOST_COUNTED)
        self._future: Future | None = None
        self._next_used = np.zeros(num_slots, dtype=np.int64)

    def foresee(self, future: "Future") -> None:
        """Take what the batches will read, before the first of them; ``belady`` needs it."""
        self._future = future
        slots = np.flatnonzero(self.row_of_slot >= 0)
        self._next_used[slots] = future.first_used[self.row_of_slot[slots]]

    def warm_up(self, rows: Ints) -> None:
        """Fill slots with rows, ascending, as if by a batch before the first."""
        slots = np.arange(len(rows))
        self._admit(rows, slots)
        self._last_used[slots] = _BEFORE_FIRST
        if self._policy in QUEUED:
            self._queue.put(slots, _BEFORE_FIRST)
        if self._policy in COUNTED:
            self._counted.put(slots, self._uses[slots], _BEFORE_FIRST)

    def prepare(self, ids: Ints) -> Prepared:
        """Return what a batch finds and moves, with all its rows in the cache. Raises CacheTooSmallError."""
        rows, lookups = np.unique(ids, return_counts=True)
        if len(rows) > len(self.row_of_slot):
            raise CacheTooSmallError(len(rows), len(self.row_of_slot), len(self._slot_of_row), self._batch)
        slots = self._slot_of_row[rows].astype(np.int64)
        is_hit = slots >= 0
        rows_in = rows[~is_hit]
        num_fresh = min(len(rows_in), len(self.row_of_slot) - self._num_filled)
        slots_out = self._leaving(len(rows_in) - num_fresh, slots[is_hit])
        rows_out = self.row_of_slot[slots_out]
        self._slot_of_row[rows_out] = -1
        slots[~is_hit] = np.concatenate((np.arange(self._num_filled, self._num_filled + num_fresh), slots_out))
        self._admit(rows_in, slots[~is_hit])
        self._uses[slots] += lookups
        self._last_used[slots] = self._batch
        if self._future is not None:
            self._next_used[slots] = self._future.next_used[self._batch]
        if self._policy in QUEUED:
            self._queue.put(slots if QUEUED[self._policy] == "last_used" else slots[~is_hit], self._batch)
        if self._policy in COUNTED:
            self._counted.put(slots, self._uses[slots], self._batch)
        self._batch += 1
        return Prepared(rows=rows, lookups=lookups, slots=slots, is_hit=is_hit, rows_out=rows_out, slots_out=slots_out)

    def _leaving(self, num_rows: int, needed: Ints) -> Ints:
        """Return the slots of so many rows that give way, the least worth first; ``needed`` slots stay."""
        if num_rows == 0:
            return np.empty(0, dtype=np.int64)
        if self._policy in QUEUED:
            return self._queue.take(num_rows, needed)
        if self._policy in COUNTED:
            slots = self._counted.take(num_rows, needed)
            others = self._least(num_rows - len(slots), np.concatenate((needed, slots)))
            return np.concatenate((slots, others))
        if self._policy == "belady" and self._future is None:
            message = "belady must foresee its batches"
            raise ValueError(message)
        return self._least(num_rows, needed)

    def _least(self, num_rows: int, kept: Ints) -> Ints:
        """Return the slots of the least worth among all but those ``kept``."""
        if num_rows == 0:
            return np.empty(0, dtype=np.int64)
        may_go = np.ones(self._num_filled, dtype=np.bool_)
        may_go[kept] = False
        slots = np.flatnonzero(may_go)
        candidates = _Candidates(
            slots=slots,
            rows=self.row_of_slot[slots],
            of_rows=self._frequency,
            of_slots=(self._uses, self._last_used, self._next_used),
            seed=(self._seed, self._batch),
        )
        worth = (*RANKED[self._policy](candidates), candidates.rows)
        return slots[least_worth(worth, num_rows)]

    def _admit(self, rows: Ints, slots: Ints) -> None:
        """Put rows, ascending, into slots that are free or that a row has left."""
        self._slot_of_row[rows] = slots
        self.row_of_slot[slots] = rows
        self._num_filled += len(slots[slots >= self._num_filled])
        self._uses[slots] = 0
        self._last_used[slots] = self._batch


class _Candidates(Struct, frozen=True, kw_only=True):
    """Rows in some slots of a cache (``policies.Candidates``): a policy picks what it asks for out of whole arrays.

    ``of_rows``: how often the data set reads each row of all tables; ``of_slots``: uses, last and next use of each slot
    of the cache. ``seed``: of this batch.
    """

    slots: Ints
    rows: Ints
    of_rows: NDArray[np.float64]
    of_slots: tuple[Ints, Ints, Ints]
    seed: tuple[int, int]

    @property
    def frequency(self) -> NDArray[np.float64]:
        """Return how often the data set reads each row."""
        return self.of_rows[self.rows]

    @property
    def uses(self) -> Ints:
        """Return the lookups since each row came into the cache."""
        return self.of_slots[0][self.slots]

    @property
    def last_used(self) -> Ints:
        """Return the number of the last batch that has read each row."""
        return self.of_slots[1][self.slots]

    @property
    def next_used(self) -> Ints:
        """Return the number of the next batch that reads each row."""
        return self.of_slots[2][self.slots]

    @property
    def draw(self) -> NDArray[np.float64]:
        """Return random numbers of 0 to 1, new for every batch."""
        return np.random.default_rng(self.seed).random(len(self.slots))
