"""FlexMoE's estimate of a layer's step time, from profiled rates (Nie et al. 2023, eq. 5 to 9).

Only the policy believes it: time in a simulation comes from the engine. ``Neighbours`` estimates many placements at
once that differ from one in few experts.
"""

from collections.abc import Sequence
from functools import cached_property
from math import inf

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Floats, Placement, check_placement
from sim.moe.routing import Counts

_EXCHANGES = 4  # dispatch and combine, forward and backward


class Rates(Struct, frozen=True, kw_only=True):
    """Profiled rates of a layer with experts.

    ``tokens_per_s``: through an expert, forward and backward. ``token_bytes``: of a row of an exchange.
    ``link_bytes_per_s``: between two ranks. ``reduce_bytes_per_s``: of an all_reduce of ``gradient_bytes``, which an
    expert's gradients have. ``ranks_per_node``: ranks in a row that share the network adapters of a node, of
    ``node_bytes_per_s`` together; 0: all links are alike.
    """

    tokens_per_s: float
    token_bytes: float
    link_bytes_per_s: float
    reduce_bytes_per_s: float
    gradient_bytes: float
    ranks_per_node: int = 0
    node_bytes_per_s: float = inf


class Estimate(Struct, frozen=True, eq=False, dict=True):
    """Seconds of every rank, and the tokens that it computes."""

    compute_s: Floats
    exchange_s: Floats
    sync_s: Floats
    load: Floats

    @cached_property
    def ranks_s(self) -> Floats:
        """Return the time of every rank."""
        times: Floats = self.compute_s + self.exchange_s + self.sync_s
        return times

    @cached_property
    def time_s(self) -> float:
        """Return the time of the slowest rank."""
        return float(self.ranks_s.max())

    @property
    def balance_ratio(self) -> float:
        """Return the largest load over the mean one."""
        return float(self.load.max() / self.load.mean())


def estimate(counts: Counts, placement: Placement, rates: Rates) -> Estimate:
    """Return the estimate for choices [source, expert] and vExperts [rank, expert].

    Raises RoutingError for a placement of other ranks or experts, or without one of the experts.
    """
    return Neighbours.of(counts, placement, rates).here


class Neighbours(Struct, frozen=True, eq=False, dict=True):
    """Estimates of placements that differ from ``placement`` in few experts.

    ``parts``: what each expert adds to each rank, [7, expert, rank]; see ``_parts``.
    """

    counts: Counts
    placement: Placement
    rates: Rates
    parts: NDArray[np.float64]

    @classmethod
    def of(cls, counts: Counts, placement: Placement, rates: Rates) -> "Neighbours":
        """Return those of a placement. Raises RoutingError as ``estimate``."""
        check_placement(counts, placement)
        return cls(counts, placement, rates, _parts(counts.T, placement.T, rates))

    def moved(self, placement: Placement, experts: Sequence[int]) -> "Neighbours":
        """Return those of a placement in which only these experts lie elsewhere."""
        here, parts = list(experts), self.parts.copy()
        parts[:, here] = _parts(self.counts.T[here], placement.T[here], self.rates)
        return Neighbours(self.counts, placement, self.rates, parts)

    @cached_property
    def totals(self) -> NDArray[np.float64]:
        """Return what all experts add to each rank, [7, rank]."""
        total: NDArray[np.float64] = self.parts.sum(1)
        return total

    @cached_property
    def here(self) -> Estimate:
        """Return the estimate of the placement itself."""
        return Estimate(*seconds_of(self.totals, self.rates), load=self.totals[0])

    def times_s(self, experts: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
        """Return the estimated time of each neighbour [n].

        ``experts`` [n, k]: those whose vExperts are others, each once. ``columns`` [n, k, rank]: their vExperts.
        """
        changed = _parts(self.counts.T[experts], columns, self.rates) - self.parts[:, experts]
        compute_s, exchange_s, sync_s = seconds_of(self.totals[:, None] + changed.sum(2), self.rates)
        times: Floats = (compute_s + exchange_s + sync_s).max(-1)
        return times


def _parts(counts: NDArray[np.int64], columns: NDArray[np.int64], rates: Rates) -> NDArray[np.float64]:
    """Return what each expert adds to each rank, [7, ..., rank], for its choices and vExperts [..., rank].

    In order: tokens computed, sent, received; bytes of gradients; tokens sent and received by the rank's node, and
    bytes of gradients over its adapters. As ``assigned`` has it, a rank sends what it has no room for, and a rank with
    room left receives as much, from all senders in proportion: so a node's ranks send the part to other nodes that
    these have of the room left.
    """
    room = counts.sum(-1, keepdims=True) * columns / columns.sum(-1, keepdims=True)
    sent, received = np.maximum(counts - room, 0.0), np.maximum(room - counts, 0.0)
    holds = columns > 0
    replicas = holds.sum(-1, keepdims=True)
    gradient_bytes = 2.0 * (replicas - 1) / replicas * rates.gradient_bytes
    own = [room, sent, received, holds * gradient_bytes]
    if not rates.ranks_per_node:
        return np.stack([*own, *[np.zeros_like(room)] * 3])
    sent_by, received_by, on_node = (by_node(values, rates.ranks_per_node) for values in (sent, received, holds))
    total = sent.sum(-1, keepdims=True)
    share = 1.0 / np.where(total > 0.0, total, 1.0)
    spans = (on_node < replicas) & (on_node > 0)
    outwards, inwards = sent_by * (1.0 - received_by * share), received_by * (1.0 - sent_by * share)
    return np.stack([*own, outwards, inwards, spans * gradient_bytes])


def by_node(
    values: NDArray[np.float64] | NDArray[np.int64] | NDArray[np.bool_], ranks_per_node: int
) -> NDArray[np.float64]:
    """Return the sum over the ranks of each rank's node, [..., rank]."""
    edges = np.arange(0, values.shape[-1], ranks_per_node)
    sums = np.add.reduceat(values.astype(np.float64), edges, axis=-1)
    spread: NDArray[np.float64] = np.repeat(sums, ranks_per_node, axis=-1)[..., : values.shape[-1]]
    return spread


def seconds_of(parts: NDArray[np.float64], rates: Rates) -> tuple[Floats, Floats, Floats]:
    """Return seconds of computing, of exchanges and of sums of gradients of what all experts add, [..., rank]."""
    load, sent, received, gradient_bytes, outwards, inwards, over_adapters = parts
    token_s = _EXCHANGES * rates.token_bytes
    exchange_s = np.maximum(sent, received) * token_s / rates.link_bytes_per_s
    between_s = np.maximum(outwards, inwards) * token_s / rates.node_bytes_per_s
    sync_s = np.maximum(gradient_bytes / rates.reduce_bytes_per_s, over_adapters / rates.node_bytes_per_s)
    return load / rates.tokens_per_s, np.maximum(exchange_s, between_s), sync_s
