"""Least times of placements that differ from one in one or two experts: most need no estimate of their own.

A layer's time is that of its slowest rank. So the time of a few ranks bounds it: of those that are slowest now, and of
those whose vExperts change. A neighbour whose bound is not below the best estimate so far is not estimated. Decisions
are the same as with all estimated.

The rank that is slowest now stays the slowest of most neighbours. So it is looked at first, for all of them in one
table of experts and ranks, and the others only for neighbours that are left.
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
    """``number`` vExperts of an expert more on a rank of each neighbour; ``ranks`` has the shape of the neighbours."""

    ranks: Ints
    number: int


class Columns:
    """Some experts' parts of all ranks: choices and vExperts [expert, rank], and tokens of a vExpert [expert]."""

    def __init__(self, counts: Ints, vexperts: Ints, per_vexpert: Floats, rates: Rates) -> None:
        self._counts, self._vexperts, self._per_vexpert, self._rates = counts, vexperts, per_vexpert, rates
        self._num_ranks = counts.shape[1]
        ranks_per_node = rates.ranks_per_node or self._num_ranks
        self._node = np.arange(self._num_ranks) // ranks_per_node
        self._own = self._with_more(0)
        self._total, self._replicas = self._own[0].sum(1), self._own[2].sum(1)
        room, by = per_vexpert[:, None] * vexperts, by_node(self._own, ranks_per_node)
        self._table = np.concatenate([self._own, by, room[None]]).reshape(7, -1)
        self._more = dict[int, Floats]()

    def _with_more(self, number: int) -> Floats:
        """Return tokens sent, received and copies [3, expert, rank] with so many vExperts more on every rank."""
        had = self._vexperts + number
        room = self._per_vexpert[:, None] * had
        return np.stack([np.maximum(self._counts - room, 0.0), np.maximum(room - self._counts, 0.0), had > 0])

    def _gained(self, number: int) -> Floats:
        """Return what so many vExperts more add where they are [3, expert and rank], as ``_with_more``."""
        if number not in self._more:
            self._more[number] = (self._with_more(number) - self._own).reshape(3, -1)
        return self._more[number]

    def parts(self, experts: Ints, gains: Sequence[Gain], ranks: Ints) -> Floats:
        """Return what an expert adds to a rank, [7, rank, neighbour], as ``Neighbours.parts``.

        ``experts``, ``gains`` and ``ranks`` together have this shape, or that of a table of neighbours.
        """
        experts, ranks = np.atleast_2d(experts, ranks)
        first = experts * self._num_ranks
        found = self._table.take(first + ranks, axis=1)
        own, by, room, replicas, total = found[:3], found[3:6], found[6], self._replicas[experts], self._total[experts]
        for changed, number in [(np.atleast_2d(gain.ranks), gain.number) for gain in gains]:
            more = self._gained(number).take(first + changed, axis=1)
            here, near = changed == ranks, self._node[changed] == self._node[ranks]
            own, by, room = own + here * more, by + near * more, room + here * (number * self._per_vexpert[experts])
            replicas, total = replicas + more[2], total + more[0]
        sent, received, holds = own
        gradient_bytes = 2.0 * (replicas - 1) / np.maximum(replicas, 1) * self._rates.gradient_bytes
        if not self._rates.ranks_per_node:
            return np.stack([room, sent, received, holds * gradient_bytes, *[np.zeros_like(room)] * 3])
        sent_by, received_by, on_node = by
        share = 1.0 / np.where(total > 0.0, total, 1.0)
        spans = (on_node < replicas) & (on_node > 0)
        outwards, inwards = sent_by * (1.0 - received_by * share), received_by * (1.0 - sent_by * share)
        return np.stack([room, sent, received, holds * gradient_bytes, outwards, inwards, spans * gradient_bytes])


class _Bounds:
    """The longest time of some ranks of a placement's neighbours, infinite where it is no less than the time now."""

    def __init__(self, here: Neighbours) -> None:
        self._here, self._ranks = here, np.arange(len(here.placement))
        order = np.argsort(-here.here.ranks_s, kind="stable")
        nodes = order // here.rates.ranks_per_node if here.rates.ranks_per_node else order
        slowest = order[np.sort(np.unique(nodes, return_index=True)[1])][:_SLOWEST]
        self._slowest, self._others = slowest[:1, None], slowest[1:, None]

    def _columns(self, experts: Ints, number: int) -> Columns:
        """Return some experts as each is with so many more vExperts in all, which changes the share of its others."""
        counts, vexperts = self._here.counts.T[experts], self._here.placement.T[experts]
        return Columns(counts, vexperts, counts.sum(1) / np.maximum(vexperts.sum(1) + number, 1), self._here.rates)

    def _beside(self, ranks: Ints) -> Ints:
        """Return the ranks that decide beside the slowest, and two of each neighbour, or one [rank, neighbour]."""
        others = np.broadcast_to(self._others, (len(self._others), ranks.shape[1]))
        return np.concatenate([others, ranks])

    def _now(self, experts: Ints, ranks: Ints) -> Floats:
        """Return what experts add to ranks as they lie now."""
        parts = self._here.parts.reshape(7, -1)
        found: Floats = parts.take(experts * len(self._ranks) + ranks, axis=1)
        return found

    def _below(self, parts: Floats) -> Floats:
        times_s = sum(seconds_of(parts, self._here.rates))
        return np.where(times_s < self._here.here.time_s, times_s, np.inf)


class ExpansionBounds(_Bounds):
    """Bounds of one vExpert more of ``experts``, alone or in the place of one of ``donors``, one for each of them."""

    def __init__(self, here: Neighbours, experts: Ints, donors: Ints) -> None:
        super().__init__(here)
        self._experts = experts
        self._donors, self._donor_of = np.unique(donors, return_inverse=True)
        self._gaining, self._giving = self._columns(experts, 1), self._columns(self._donors, -1)

    def slowest_s(self) -> Floats:
        """Return the time of the slowest rank [alone or in a place, expert, rank of the vExpert]."""
        places, givers = (np.arange(len(of))[:, None] for of in (self._experts, self._donors))
        alone = self._here.totals[:, self._slowest] + self._gained(places, self._ranks, self._slowest)
        given = self._given(givers, self._ranks, self._slowest)[:, self._donor_of]
        return self._below(np.stack([alone, alone + given], axis=1))

    def rest_s(self, place: int, alone: Ints, instead: Ints) -> Floats:
        """Return the longest time of other ranks, of vExperts of one of the experts on ranks, alone and in a place."""
        ranks, places = np.concatenate([alone, instead]), np.array([place])
        at = self._beside(ranks[None])
        parts = self._here.totals[:, at] + self._gained(places, ranks, at)
        if len(instead):
            parts[:, :, len(alone) :] += self._given(self._donor_of[places], instead, at[:, len(alone) :])
        found: Floats = self._below(parts).max(0)
        return found

    def _gained(self, places: Ints, ranks: Ints, at: Ints) -> Floats:
        """Return what a vExpert more on ``ranks`` adds to the ranks ``at``."""
        return self._gaining.parts(places, (Gain(ranks, 1),), at) - self._now(self._experts[places], at)

    def _given(self, givers: Ints, ranks: Ints, at: Ints) -> Floats:
        """Return what a donor's vExpert less on ``ranks`` adds to the ranks ``at``."""
        return self._giving.parts(givers, (Gain(ranks, -1),), at) - self._now(self._donors[givers], at)


class ExchangeBounds(_Bounds):
    """Bounds of exchanges of two vExperts."""

    def __init__(self, here: Neighbours) -> None:
        super().__init__(here)
        self._all = self._columns(np.arange(here.placement.shape[1]), 0)

    def slowest_s(self, ranks: Ints, experts: Ints, first: Ints, second: Ints) -> Floats:
        """Return the time of the slowest rank after exchanges of two of the vExperts on ``ranks``, of ``experts``."""
        num, gains = len(self._ranks), (Gain(ranks[:, None], -1), Gain(self._ranks, 1))
        moved = self._moved(experts[:, None], gains, self._slowest)
        there, back = first * num + ranks[second], second * num + ranks[first]
        flat = moved.reshape(len(moved), -1)
        return self._below(self._here.totals[:, self._slowest[0]] + flat.take(there, axis=1) + flat.take(back, axis=1))

    def rest_s(self, exchanges: Ints) -> Floats:
        """Return the longest time of other ranks after exchanges [n, 4]: rank, other rank, expert and other expert."""
        rank, other_rank, expert, other = exchanges.T
        at = self._beside(exchanges.T[:2])
        there = self._moved(expert, (Gain(rank, -1), Gain(other_rank, 1)), at)
        back = self._moved(other, (Gain(rank, 1), Gain(other_rank, -1)), at)
        found: Floats = self._below(self._here.totals[:, at] + there + back).max(0)
        return found

    def _moved(self, experts: Ints, gains: Sequence[Gain], at: Ints) -> Floats:
        """Return what experts add to the ranks ``at`` when vExperts change ranks."""
        return self._all.parts(experts, gains, at) - self._now(experts, at)


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
