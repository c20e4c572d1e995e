"""Rows of embedding tables in host memory, and those on the device, moved as a cache decides."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sim.embedding.cache import BatchCache
from sim.embedding.policies import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a batch found on the device, and what was copied for it, in lookups, rows and bytes."""

    hits: int
    rows_in: int
    rows_out: int
    in_bytes: int
    out_bytes: int


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
            hits=hits, rows_in=len(fetched), rows_out=len(written), in_bytes=fetched.nbytes, out_bytes=written.nbytes
        )
        return places, moved

    def flush(self) -> None:
        """Write every row on the device back; the cache goes on."""
        self._write_back(np.flatnonzero(self._cache.row_of_slot >= 0))

    def _write_back(self, slots: Ints) -> Tensor:
        """Return the rows that were copied from slots to their places in host memory."""
        chosen = self._on_device(slots)
        rows = self.buffer.index_select(0, chosen).to(self.weight.device)
        self.weight.index_copy_(0, self._row_of_slot[chosen].to(self.weight.device), rows)
        return rows

    def _fetch(self, rows: Ints, slots: Ints) -> Tensor:
        """Return the rows that were copied from host memory into slots."""
        chosen, numbers = self._on_device(slots), torch.from_numpy(rows)
        values = self.weight.index_select(0, numbers).to(self._device)
        self.buffer.index_copy_(0, chosen, values)
        self._row_of_slot[chosen] = numbers.to(self._device)
        return values

    def _on_device(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)
