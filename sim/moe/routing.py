"""The routing of one step: choices by layer, source rank and expert."""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.errors import RoutingError

Counts = NDArray[np.int64]


class RoutingShape(Struct, frozen=True, kw_only=True):
    """What a routing must fit: layers with experts, source ranks, experts, and a source's tokens in a micro-batch.

    ``top_k``: experts that every token chooses, each once.
    """

    num_layers: int
    num_sources: int
    num_experts: int
    num_tokens: int
    top_k: int

    @property
    def num_choices(self) -> int:
        """Return the choices of one source's tokens in a micro-batch."""
        return self.num_tokens * self.top_k


class RoutingSource(Protocol):
    """A way to come by a routing; equal ones give equal routings."""

    def routing(self, shape: RoutingShape) -> "Routing":
        """Return the routing of a step. Raises RoutingError where this way has none of such a shape."""
        ...

    def later(self, steps: int) -> "RoutingSource":
        """Return the source of so many steps later. Raises RoutingError where it has none."""
        ...

    def __hash__(self) -> int:
        """Return the same number for equal ones."""
        ...


class Routing(Struct, frozen=True, eq=False, dict=True):
    """How many choices of a source rank's micro-batch go to each expert: ``counts``[layer, source, expert].

    All micro-batches of the step are routed alike. Layers are those with experts, in order.
    """

    counts: Counts

    @property
    def num_sources(self) -> int:
        """Return the number of source ranks."""
        return int(self.counts.shape[1])

    @cached_property
    def by_expert(self) -> Counts:
        """Return the choices of all sources together, [layer, expert]."""
        total: Counts = self.counts.sum(1)
        return total

    def kept_fraction(self, capacity: int) -> float:
        """Return the part of all choices that find a slot, of which every source has ``capacity`` for each expert."""
        return float(np.minimum(self.counts, capacity).sum() / self.counts.sum())

    def check(self, shape: RoutingShape) -> "Routing":
        """Return the routing. Raises RoutingError unless every token of every source chooses ``top_k`` experts."""
        totals, most = self.counts.sum(2), self.counts.max(2)
        if np.any(totals != shape.num_choices):
            layer, source = (int(i) for i in np.argwhere(totals != shape.num_choices)[0])
            raise RoutingError(
                f"source rank {source} makes {totals[layer, source]:,} choices in expert layer {layer}, and "
                f"{shape.num_tokens:,} tokens with {shape.top_k} experts each make {shape.num_choices:,}",
                "use a routing of the same micro-batch, sequence length and top_k",
            )
        if np.any(most > shape.num_tokens):
            layer, source = (int(i) for i in np.argwhere(most > shape.num_tokens)[0])
            raise RoutingError(
                f"one expert gets {most[layer, source]:,} choices of source rank {source} in expert layer {layer}, "
                f"which has {shape.num_tokens:,} tokens, and a token chooses an expert once",
                f"give an expert a share of at most 1/{shape.top_k}",
            )
        return self


def of_ranks(by_expert: Counts, num_ranks: int) -> Counts:
    """Return the choices [..., rank] that reach each of the ranks that share out the experts [..., expert] in order."""
    total: Counts = by_expert.reshape(*by_expert.shape[:-1], num_ranks, -1).sum(-1)
    return total


def dealt(total: int, shares: Sequence[float] | NDArray[np.float64]) -> Counts:
    """Return whole numbers in the proportion of ``shares`` that add up to ``total``, by largest remainders."""
    wanted = np.asarray(shares, dtype=np.float64) * total
    counts = np.floor(wanted).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:rest]] += 1
    return counts
