"""Rows of embedding tables in host memory, and those on the device, moved as a cache decides."""

from typing import Final, NamedTuple

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from sim.embedding.cache import BatchCache
from sim.embedding.policies import Ints

_COPIED_AT_ONCE: Final = 1 << 16
"""Rows that are copied together; it bounds the host memory for rows on their way."""


class Moved(Struct, frozen=True, kw_only=True):
    """What a batch found on the device, and what was copied for it, in lookups, rows and bytes."""

    hits: int
    rows_in: int
    rows_out: int
    in_bytes: int
    out_bytes: int


class Copied(NamedTuple):
    """Rows and bytes that were copied."""

    num_rows: int
    num_bytes: int

    def and_(self, rows: Tensor) -> "Copied":
        """Return the sums with further rows."""
        return Copied(self.num_rows + len(rows), self.num_bytes + rows.nbytes)


def _parts(numbers: Ints) -> list[Ints]:
    """Return numbers in parts of at most so many rows as are copied at once."""
    return [numbers[first : first + _COPIED_AT_ONCE] for first in range(0, len(numbers), _COPIED_AT_ONCE)]


class CachedRows:
    """A table whose rows lie in host memory; a buffer on the device holds those that a cache has let in.

        rows = CachedRows(weight, cache, torch.device("cuda"))
        places, moved = rows.prepare(ids)  # then: embedding_bag(places, rows.buffer, ...)
        rows.flush()  # every row is in ``weight`` again

    The cache decides alone; the device keeps the number of the row in each slot, and counts hits by it.
    """

    def __init__(self, weight: Tensor, cache: BatchCache, device: torch.device) -> None:
        self.weight, self._cache, self._device = weight, cache, device
        num_slots = len(cache.row_of_slot)
        self.buffer = torch.zeros(num_slots, weight.shape[1], dtype=weight.dtype, device=device)
        self._row_of_slot = torch.full((num_slots,), -1, dtype=torch.int64, device=device)
        filled = np.flatnonzero(cache.row_of_slot >= 0)
        self._fetch(cache.row_of_slot[filled], filled)

    def prepare(self, ids: Ints) -> tuple[Tensor, Moved]:
        """Return the slots in which the rows of a batch lie now, a slot per id. Raises CacheTooSmallError."""
        found = self._cache.prepare(ids)
        places = self._on_device(found.slots[np.searchsorted(found.rows, ids)])
        hits = int((self._row_of_slot[places] == self._on_device(ids)).sum())
        written = self._write_back(found.slots_out)
        fetched = self._fetch(found.rows_in, found.slots_in)
        moved = Moved(
            hits=hits,
            rows_in=fetched.num_rows,
            rows_out=written.num_rows,
            in_bytes=fetched.num_bytes,
            out_bytes=written.num_bytes,
        )
        return places, moved

    def flush(self) -> None:
        """Write every row on the device back; the cache goes on."""
        self._write_back(np.flatnonzero(self._cache.row_of_slot >= 0))

    def _write_back(self, slots: Ints) -> Copied:
        """Copy rows from slots to their places in host memory."""
        copied = Copied(0, 0)
        for part in _parts(slots):
            chosen = self._on_device(part)
            rows = self._staged(len(part))
            rows.copy_(self.buffer.index_select(0, chosen))
            self.weight.index_copy_(0, self._row_of_slot[chosen].to(self.weight.device), rows)
            copied = copied.and_(rows)
        return copied

    def _fetch(self, rows: Ints, slots: Ints) -> Copied:
        """Copy rows from host memory into slots."""
        copied = Copied(0, 0)
        for numbers, part in zip(map(torch.from_numpy, _parts(rows)), _parts(slots), strict=True):
            chosen, staged = self._on_device(part), self._staged(len(part))
            values = torch.index_select(self.weight, 0, numbers, out=staged).to(self._device, non_blocking=True)
            self.buffer.index_copy_(0, chosen, values)
            self._row_of_slot[chosen] = numbers.to(self._device)
            copied = copied.and_(values)
        return copied

    def _staged(self, num_rows: int) -> Tensor:
        """Return host memory for rows on their way; for a table in pinned memory it is pinned too."""
        shape, pinned = (num_rows, self.weight.shape[1]), self.weight.is_pinned()
        return torch.empty(shape, dtype=self.weight.dtype, pin_memory=pinned)

    def _on_device(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)
