"""Least times of placements that differ from one in one or two experts: most need no estimate of their own.

A layer's time is that of its slowest rank. So the time of a few ranks bounds it: of those that are slowest now, and of
those whose vExperts change. A neighbour whose bound is not below the best estimate so far is not estimated. Decisions
are the same as with all estimated.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Floats
from sim.moe.balancing.estimate import Neighbours, Rates, by_node, seconds_of

Ints = NDArray[np.int64]

_SLOWEST: Final = 4
"""Nodes, or ranks where all links are alike, whose slowest rank bounds the time."""
_BLOCK: Final = 128
"""Neighbours that are estimated at once."""
_ROUNDING_S: Final = 2e-12
"""Times that differ by less are taken as equal."""


class Gain(NamedTuple):
    """``number`` vExperts of an expert more on the rank of each neighbour ``ranks`` [n]."""

    ranks: Ints
    number: int


class Columns:
    """Some experts' parts of all ranks: choices and vExperts [expert, rank], and tokens of a vExpert [expert]."""

    def __init__(self, counts: Ints, vexperts: Ints, per_vexpert: Floats, rates: Rates) -> None:
        self.counts, self.vexperts, self.per_vexpert, self.rates = counts, vexperts, per_vexpert, rates
        self.room = per_vexpert[:, None] * vexperts
        self.sent, self.received = np.maximum(counts - self.room, 0.0), np.maximum(self.room - counts, 0.0)
        self.holds = (vexperts > 0).astype(np.int64)
        self.replicas, self.total = self.holds.sum(1), self.sent.sum(1)
        ranks_per_node = rates.ranks_per_node or counts.shape[1]
        self.node = np.arange(counts.shape[1]) // ranks_per_node
        self.sent_by, self.received_by, self.on_node = (
            by_node(values, ranks_per_node) for values in (self.sent, self.received, self.holds)
        )


class Changed:
    """One expert of each neighbour [n], after gains of vExperts on some ranks."""

    def __init__(self, columns: Columns, experts: Ints, gains: Sequence[Gain]) -> None:
        self._columns, self._experts, self._gains = columns, experts, gains
        self._per_vexpert, self._replicas = columns.per_vexpert[experts], columns.replicas[experts].copy()
        self._moved = list[tuple[Floats, Floats, Ints]]()
        for ranks, number in gains:
            had, chosen = columns.vexperts[experts, ranks], columns.counts[experts, ranks]
            room = self._per_vexpert * (had + number)
            sent = np.maximum(chosen - room, 0.0) - columns.sent[experts, ranks]
            received = np.maximum(room - chosen, 0.0) - columns.received[experts, ranks]
            holds = (had + number > 0).astype(np.int64) - (had > 0)
            self._replicas += holds
            self._moved.append((sent, received, holds))

    def parts(self, ranks: Ints, kept: Ints) -> Floats:
        """Return what the expert adds to one rank of each neighbour that is kept, [7, n], as ``Neighbours.parts``."""
        columns, experts, replicas = self._columns, self._experts[kept], self._replicas[kept]
        at = (experts, ranks)
        room, sent, received = columns.room[at], columns.sent[at], columns.received[at]
        holds, on_node = columns.holds[at], columns.on_node[at]
        sent_by, received_by, total = columns.sent_by[at], columns.received_by[at], columns.total[experts]
        for (changed, number), moved in zip(self._gains, self._moved, strict=True):
            more_sent, more_received, more_holds = (values[kept] for values in moved)
            here, near = changed[kept] == ranks, columns.node[changed[kept]] == columns.node[ranks]
            room = room + here * number * self._per_vexpert[kept]
            sent, received, holds = sent + here * more_sent, received + here * more_received, holds + here * more_holds
            sent_by, received_by = sent_by + near * more_sent, received_by + near * more_received
            on_node, total = on_node + near * more_holds, total + more_sent
        gradient_bytes = 2.0 * (replicas - 1) / replicas * columns.rates.gradient_bytes
        own = [room, sent, received, holds * gradient_bytes]
        if not columns.rates.ranks_per_node:
            return np.stack([*own, *[np.zeros_like(room)] * 3])
        share = 1.0 / np.where(total > 0.0, total, 1.0)
        spans = (on_node < replicas) & (on_node > 0)
        outwards, inwards = sent_by * (1.0 - received_by * share), received_by * (1.0 - sent_by * share)
        return np.stack([*own, outwards, inwards, spans * gradient_bytes])


class Bounds:
    """The neighbours of a placement and their bounds."""

    def __init__(self, here: Neighbours) -> None:
        self.here, self._totals, estimate = here, here.parts.sum(1), here.here
        self._limit_s = estimate.time_s
        per_vexpert = here.counts.sum(0) / here.placement.sum(0)
        self._columns = Columns(here.counts.T, here.placement.T, per_vexpert, here.rates)
        times_s = estimate.compute_s + estimate.exchange_s + estimate.sync_s
        order = np.argsort(-times_s, kind="stable")
        nodes = self._columns.node[order] if here.rates.ranks_per_node else order
        self._slowest = order[np.sort(np.unique(nodes, return_index=True)[1])][:_SLOWEST].tolist()

    def exchanges_s(self, exchanges: Ints) -> Floats:
        """Return the bound of each exchange [n, 4]: rank, other rank, expert and other expert."""
        rank, other_rank, expert, other = exchanges.T
        changed = [
            (expert, Changed(self._columns, expert, (Gain(rank, -1), Gain(other_rank, 1)))),
            (other, Changed(self._columns, other, (Gain(rank, 1), Gain(other_rank, -1)))),
        ]
        return self._bounds_s(changed, [rank, other_rank])

    def expansions_s(self, rows: Ints) -> Floats:
        """Return the bound of each expansion [n, 3]: expert, the donor that gives its place or -1, and rank."""
        bounds_s = np.empty(len(rows))
        for replaces in (False, True):
            chosen = (rows[:, 1] >= 0) == replaces
            expert, donor, ranks = rows[chosen].T
            changed = [(expert, Changed(self._with_more(1), expert, (Gain(ranks, 1),)))]
            if replaces:
                changed.append((donor, Changed(self._with_more(-1), donor, (Gain(ranks, -1),))))
            bounds_s[chosen] = self._bounds_s(changed, [ranks])
        return bounds_s

    def _with_more(self, number: int) -> Columns:
        """Return all experts as each is with so many more vExperts in all, which changes the share of its others."""
        counts, vexperts = self.here.counts, self.here.placement
        return Columns(counts.T, vexperts.T, counts.sum(0) / np.maximum(vexperts.sum(0) + number, 1), self.here.rates)

    def _bounds_s(self, changed: list[tuple[Ints, Changed]], touched: Sequence[Ints]) -> Floats:
        """Return the longest time of the ranks that are looked at; infinite where it is no less than now."""
        num = len(touched[0])
        bounds_s, alive = np.zeros(num), np.arange(num)
        for ranks in (*(np.full(num, rank) for rank in self._slowest), *touched):
            here = ranks[alive]
            parts = self._totals[:, here]
            for experts, column in changed:
                parts = parts - self.here.parts[:, experts[alive], here] + column.parts(here, alive)
            times_s = np.maximum(bounds_s[alive], sum(seconds_of(parts, self.here.rates)))
            bounds_s[alive] = np.where(times_s < self._limit_s, times_s, np.inf)
            alive = alive[times_s < self._limit_s]
            if not len(alive):
                break
        return bounds_s


def least_s(bounds_s: Floats, limit_s: float, estimated_s: Callable[[Ints], Floats]) -> tuple[Floats, int]:
    """Return the times of those neighbours that may be the best below a limit, infinite for all others.

    ``estimated_s``: the times of neighbours by number. Also returns how many were estimated.
    """
    times_s, num = np.full(len(bounds_s), np.inf), 0
    order = np.argsort(bounds_s, kind="stable")
    while num < len(order) and bounds_s[order[num]] < limit_s + _ROUNDING_S:
        block = order[num : num + _BLOCK]
        block = block[bounds_s[block] < np.inf]
        times_s[block] = estimated_s(block)
        num += len(block)
        limit_s = min(limit_s, float(times_s[block].min()))
    return times_s, num
