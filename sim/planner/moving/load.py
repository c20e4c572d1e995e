"""What a step's routing and placement make of ranks: rows of copies, bytes between ranks, who holds what."""

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


class PlacedStep(Struct, frozen=True, eq=False, dict=True):
    """Choices ``counts`` [layer, source, expert] of a micro-batch, and ``vexperts`` [layer, rank, expert].

    ``arriving`` [layer, rank, expert]: copies on their way, which get no tokens. ``search_s``: of a host, before they
    travel.
    """

    counts: Counts
    vexperts: Counts
    arriving: Mask
    search_s: float = 0.0

    @cached_property
    def held(self) -> Mask:
        """Return the copies that ranks have [layer, rank, expert], with those on their way."""
        mask: Mask = (self.vexperts > 0) | self.arriving
        return mask

    @cached_property
    def rows(self) -> Floats:
        """Return the rows of each copy [layer, rank, expert]."""
        return rows_of_copies(self.counts, self.vexperts)


def rows_of_copies(counts: Counts, vexperts: Counts) -> Floats:
    """Return the rows of each copy [layer, rank, expert], in parts of tokens: see ``balancing.assignment``."""
    rows: Floats = counts.sum(1)[:, None] * vexperts / vexperts.sum(1, keepdims=True)
    return rows


def rows_between(counts: Counts, rows: Floats) -> Floats:
    """Return the rows from each rank to each [layer, source, rank]: a rank's own tokens come first, then room left."""
    local = np.minimum(counts, rows)
    rest, free = counts - local, rows - local
    total = free.sum(1, keepdims=True)
    part = np.divide(free, total, out=np.zeros_like(free), where=total > 0.0)
    between = rest @ part.transpose(0, 2, 1)
    ranks = np.arange(counts.shape[1])
    between[:, ranks, ranks] += local.sum(2)
    found: Floats = between
    return found
