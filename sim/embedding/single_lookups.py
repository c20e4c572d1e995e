"""An LRU cache that serves lookups one by one, many at once.

The cache holds the rows that were read last. So one position in the trace parts them from the others: a lookup is a
hit if the last lookup of its row lies behind that position. A miss in a full cache moves the position on, past the next
lookup that is still the last of its row.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.embedding.policies import Ints

_MOST_LOOKUPS: Final = 1 << 15


class LookupLru:
    """An LRU cache of ``num_slots`` of ``num_rows`` rows that serves lookups one by one.

        cache = LookupLru(num_rows=1_000_000, num_slots=15_000)
        is_hit = cache.serve(ids)

    Its work per lookup depends neither on the rows nor on the slots.
    """

    def __init__(self, num_rows: int, num_slots: int) -> None:
        self._num_slots, self._num_cached = num_slots, 0
        self._last = np.full(num_rows, -1, dtype=np.int64)
        """The position of the last lookup of each row."""
        self._in_block = np.zeros(num_rows, dtype=np.int32)
        self._line = np.empty(0, dtype=np.int64)
        """Lookups behind the dividing position, the earliest first; ``_start`` is the position of the first."""
        self._start = 0

    @property
    def num_cached(self) -> int:
        """Return how many rows lie in the cache."""
        return self._num_cached

    def serve(self, ids: Ints) -> NDArray[np.bool_]:
        """Return which lookups find their row in the cache."""
        size = min(_MOST_LOOKUPS, self._num_slots)
        blocks = [self._serve_block(ids[first : first + size]) for first in range(0, len(ids), size)]
        return np.concatenate([np.empty(0, dtype=np.bool_), *blocks])

    def _serve_block(self, ids: Ints) -> NDArray[np.bool_]:
        """Return the hits of at most as many lookups as there are slots: a row that they read again is still there."""
        order = np.arange(len(ids))
        self._in_block[ids[::-1]] = order[::-1]
        firsts = np.flatnonzero(self._in_block[ids] == order)
        before = self._last[ids[firsts]]
        oldest = self._oldest(len(firsts))
        is_hit, num_left = self._first_hits(before, oldest)
        self._last[ids] = self._start + len(self._line) + order
        self._line = np.concatenate((self._line, ids))
        if num_left:
            passed = int(oldest[num_left - 1]) + 1 - self._start
            self._line, self._start = self._line[passed:], self._start + passed
        self._num_cached = min(self._num_cached + int(np.count_nonzero(~is_hit)), self._num_slots)
        hits = np.ones(len(ids), dtype=np.bool_)
        hits[firsts] = is_hit
        return hits

    def _oldest(self, num_rows: int) -> Ints:
        """Return the last lookups of the rows that were not read for longest, so many of them or all."""
        num_rows, reach = min(num_rows, self._num_cached), 4 * num_rows
        while True:
            looked = self._line[:reach]
            found = np.flatnonzero(self._last[looked] == self._start + np.arange(len(looked)))
            if len(found) >= num_rows:
                return self._start + found[:num_rows]
            reach *= 2

    def _first_hits(self, before: Ints, oldest: Ints) -> tuple[NDArray[np.bool_], int]:
        """Return which rows are there when a block first reads them, and how many of ``oldest`` are passed at its end.

        ``before``: the last lookup of each row before the block. A row of the cache is gone if misses before it in the
        block have moved the position past it; one that is read again in time is passed without a miss. So hits depend
        on hits. From the assumption that every row of the cache is a hit, each two rounds settle one more lookup at
        least, in order, and mostly all of them: a row that is wrongly taken as a hit moves the position too far, so
        that the next round finds it gone.
        """
        is_cached = before >= self._start
        rank = np.searchsorted(oldest, before)
        is_hit = is_cached
        while True:
            num_out = np.maximum(self._num_cached + np.cumsum(~is_hit) - self._num_slots, 0)
            may_leave = np.ones(len(oldest), dtype=np.bool_)
            may_leave[rank[is_hit & (rank < len(oldest))]] = False
            ends = np.concatenate(([0], np.flatnonzero(may_leave) + 1, [len(oldest)]))
            passed = ends[np.minimum(np.concatenate(([0], num_out[:-1])), len(ends) - 1)]
            found = is_cached & (rank >= passed)
            if np.array_equal(found, is_hit):
                return is_hit, int(ends[min(int(num_out[-1]), len(ends) - 1)])
            is_hit = found
