"""What pipeline ranks hold of micro-batches under way, from their orders."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.space import Ints
from sim.planner.stages import NUM_PLACES
from sim.training.pipeline.actions import LETTERS, Order

Floats = NDArray[np.float64]


class Moments(Struct, frozen=True):
    """What ranks hold at moments of which no neighbour holds as much of all.

    ``counts``: of shape (moments, 16), by kind of virtual stage: micro-batches that wait for their backward, and for
    their weight part, and those whose forward or whole backward runs, and whose backward runs in parts. What runs does
    not wait. ``begins``: the first moment of every rank.
    """

    counts: Floats
    begins: Ints

    def most_bytes(self, sizes: Floats) -> Floats:
        """Return the most that every rank holds, of shape (ranks, strategies); ``sizes``: of shape (16, strategies)."""
        found: Floats = np.maximum.reduceat(self.counts @ sizes, self.begins, axis=0)
        return found


def moments_of(orders: Sequence[Order], places: Sequence[int]) -> Moments:
    """Return the moments of some ranks, each with its whole order. ``places``: the kind of every virtual stage."""
    every = Order.joined(*orders)
    here = np.array(places)[every.stages][:, None] == np.arange(NUM_PLACES)
    forward, whole, inputs, weights = (here & (every.kinds == LETTERS.index(kind))[:, None] for kind in "FBIW")
    # Every forward has its backward on its rank, so what is counted is 0 where the next rank begins
    waiting = np.cumsum(forward.astype(np.int8) - (inputs | whole), axis=0, dtype=np.int16) - forward
    split = np.cumsum(inputs.astype(np.int8) - weights, axis=0, dtype=np.int16) - inputs
    counts = np.concatenate([waiting, split, forward | whole, inputs | weights], axis=1)
    rank = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
    kept = ~_dominated(counts, rank)
    begins = np.searchsorted(rank[kept], np.arange(len(orders)))
    return Moments(counts[kept].astype(np.float64), begins)


def all_first_bytes(places: Sequence[int], num_microbatches: Ints, sizes: Floats) -> Floats:
    """Return the most that a rank holds which runs all forwards first, stage by stage, in bytes.

    ``places``: the kinds of its virtual stages, in model order. ``sizes``: as ``Moments.most_bytes`` reads them.
    """
    kept, running = sizes[:NUM_PLACES], sizes[2 * NUM_PLACES : 3 * NUM_PLACES]
    most, below = np.zeros(len(num_microbatches)), np.zeros(len(num_microbatches))
    for place in places:
        most = np.maximum(most, below + (num_microbatches - 1) * kept[place] + running[place])
        below += num_microbatches * kept[place]
    return most


def _dominated(counts: NDArray[np.int16], rank: Ints) -> NDArray[np.bool_]:
    """Return the moments whose next has as much of all, or whose last has as much of all, and more of something."""
    alike = rank[1:] == rank[:-1]
    grows, falls = ((counts[1:] >= counts[:-1]).all(axis=1), (counts[1:] <= counts[:-1]).all(axis=1))
    found = np.zeros(len(counts), dtype=np.bool_)
    found[:-1] = alike & grows
    found[1:] |= alike & falls & ~grows
    return found
