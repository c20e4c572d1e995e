"""FlexMoE's policy maker: vExperts that are added, dropped and exchanged until ranks are balanced (algorithm 2).

Nie et al. 2023. The paper pairs the shrinking of the least loaded expert with the expansion of the most loaded, and
keeps a change only if the estimate says that it is faster. Ours: free slots and one donor are tried for the hottest
expert, then for the next ones, down to the mean load of a vExpert.
"""

from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Placement, balance_ratio
from sim.moe.balancing.bounds import ExchangeBounds, ExpansionBounds, least_s
from sim.moe.balancing.estimate import Neighbours, Rates
from sim.moe.routing import Counts

_LEAST_GAIN_S: Final = 1e-12
ESTIMATE_S: Final = 1.5e-6
"""This search itself, with the bounds of neighbours that it does not estimate: 3,400 estimates of 64 ranks take 0.3 s.

From its speed, before it looked at the slowest rank first, beside the search that estimated all, of which 40,737 for 64
ranks took a core of 2024 0.6 s. It takes little more than half of that since, and this is about what a slow core takes.
"""


class Expand(Struct, frozen=True):
    """One more vExpert of an expert on a rank."""

    expert: int
    rank: int


class Shrink(Struct, frozen=True):
    """One vExpert of an expert less on a rank."""

    expert: int
    rank: int


class Migrate(Struct, frozen=True):
    """A vExpert of ``expert`` on ``rank`` changes places with one of ``other_expert`` on ``other_rank``."""

    expert: int
    rank: int
    other_expert: int
    other_rank: int


Change = Expand | Shrink | Migrate


class Search(Struct, frozen=True):
    """Changes of a placement, and how many placements were estimated to find them."""

    changes: tuple[Change, ...]
    num_estimates: int


class PolicyMaker(Struct, frozen=True, kw_only=True):
    """Finds changes of a placement. ``num_slots``: vExperts that a rank has room for.

    ``threshold``: balance ratio from which it acts. ``max_changes``: steps of expansion, with or without a donor;
    ``max_migrations``: exchanges after them. ``estimate_s``: time of a host to estimate a placement, per rank.
    """

    rates: Rates
    num_slots: int
    threshold: float = 1.2
    max_changes: int = 64
    max_migrations: int = 16
    estimate_s: float = ESTIMATE_S

    def changes(self, counts: Counts, placement: Placement) -> tuple[Change, ...]:
        """Return changes that lower the estimated time of choices [source, expert], in order; none if balanced.

        Every expert must have a vExpert in ``placement`` [rank, expert].
        """
        return self.search(counts, placement).changes

    def search(self, counts: Counts, placement: Placement) -> Search:
        """Return the same, with the work that it took."""
        found, num_estimates = list[Change](), 1
        if balance_ratio(counts, placement) <= self.threshold:
            return Search((), num_estimates)
        here = Neighbours.of(counts, placement, self.rates)
        for _ in range(self.max_changes):
            if here.here.balance_ratio <= self.threshold:
                break
            step, tried = self._expansion(here)
            num_estimates += tried
            if not step:
                break
            found += step
            here = _after(here, step)
        for _ in range(self.max_migrations):
            step, tried = _exchange(here)
            num_estimates += tried
            if not step:
                break
            found += step
            here = _after(here, step)
        return Search(tuple(found), num_estimates)

    def search_s(self, num_estimates: int, num_ranks: int) -> float:
        """Return the time of a host for so many estimates."""
        return num_estimates * num_ranks * self.estimate_s

    def _expansion(self, here: Neighbours) -> tuple[tuple[Change, ...], int]:
        """Return the expansion of the hottest expert that gains by one, with its donor, and how many were tried.

        None if no expert gains.
        """
        experts, donors = _hottest(here)
        bounds, now_s, tried = ExpansionBounds(here, experts, donors), here.here.time_s, 0
        is_free, gives = here.placement.sum(1) < self.num_slots, (here.placement.T[donors] > 0) & (donors >= 0)[:, None]
        at_slowest_s = bounds.slowest_s()
        may_gain = np.stack([np.broadcast_to(is_free, gives.shape), gives]) & (at_slowest_s < np.inf)
        for place in np.flatnonzero(may_gain.any((0, 2))).tolist():
            expert, donor = int(experts[place]), int(donors[place])
            alone, instead = (np.flatnonzero(ranks) for ranks in may_gain[:, place])
            bounds_s = np.maximum(at_slowest_s[:, place][may_gain[:, place]], bounds.rest_s(place, alone, instead))
            rows = np.concatenate([_rows(expert, -1, alone), _rows(expert, donor, instead)])
            times_s, number = least_s(bounds_s, now_s, partial(_expanded_s, here, rows))
            tried += number
            best = _first_least(times_s, now_s)
            if best is not None:
                rank = int(rows[best, 2])
                expand = Expand(expert, rank)
                return (expand,) if best < len(alone) else (Shrink(donor, rank), expand), tried
        return (), tried


def applied(placement: Placement, changes: tuple[Change, ...]) -> Placement:
    """Return the placement [rank, expert] after changes."""
    after = placement.copy()
    for change in changes:
        match change:
            case Expand(expert, rank):
                after[rank, expert] += 1
            case Shrink(expert, rank):
                after[rank, expert] -= 1
            case Migrate(expert, rank, other, other_rank):
                after[[rank, other_rank], [expert, other]] -= 1
                after[[rank, other_rank], [other, expert]] += 1
    return after


def _after(here: Neighbours, changes: tuple[Change, ...]) -> Neighbours:
    """Return the neighbours of the placement after changes."""
    experts = [change.expert for change in changes] + [
        change.other_expert for change in changes if isinstance(change, Migrate)
    ]
    return here.moved(applied(here.placement, changes), experts)


def _hottest(here: Neighbours) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the experts that may get a vExpert more, the hottest first, and of each the donor of a place, or -1."""
    vexperts = here.placement.sum(0)
    per_replica = here.counts.sum(0) / vexperts
    order = np.argsort(-per_replica, kind="stable")
    hot = order[: 1 + int((per_replica > per_replica.mean()).sum())]
    coldest = np.argsort(per_replica, kind="stable")
    donors = [*coldest[vexperts[coldest] > 1].tolist(), -1, -1]
    return hot, np.where(hot == donors[0], donors[1], donors[0])


def _rows(expert: int, donor: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the expansions of an expert on some ranks."""
    return np.stack([np.full(len(ranks), expert), np.full(len(ranks), donor), ranks], axis=1)


def _expanded_s(here: Neighbours, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the times after some of the expansions ``rows`` [n, 3]."""
    ones, columns, times_s = np.eye(len(here.placement), dtype=np.int64), here.placement.T, np.empty(len(numbers))
    for replaces in (False, True):
        chosen = np.flatnonzero((rows[numbers, 1] >= 0) == replaces)
        if len(chosen):
            expert, donor, rank = rows[numbers[chosen]].T
            experts, after = [expert], [columns[expert] + ones[rank]]
            if replaces:
                experts, after = [expert, donor], [*after, columns[donor] - ones[rank]]
            times_s[chosen] = here.times_s(np.stack(experts, axis=1), np.stack(after, axis=1))
    return times_s


def _exchange(here: Neighbours) -> tuple[tuple[Change, ...], int]:
    """Return the exchange of two vExperts that lowers the time most, and how many were tried; none if none does."""
    exchanges, bounds_s = _exchanges(here)
    times_s, tried = least_s(bounds_s, here.here.time_s, lambda numbers: _exchanges_s(here, exchanges[numbers]))
    best = _first_least(times_s, here.here.time_s)
    if best is None:
        return (), tried
    rank, other_rank, expert, other = exchanges[best].tolist()
    return (Migrate(expert, rank, other, other_rank),), tried


def _exchanges(here: Neighbours) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return exchanges [n, 4] that can lower the time, with bounds: rank, other rank, expert, other expert; in order.

    An exchange changes the load of its two ranks, and sums of gradients on ranks that hold one of its experts. The time
    is that of the slowest rank, which must be one of these; or of its node, where nodes share adapters.
    """
    held, slowest = here.placement > 0, int(here.here.ranks_s.argmax())
    near = np.arange(len(held)) == slowest
    if here.rates.ranks_per_node:
        near = np.arange(len(held)) // here.rates.ranks_per_node == slowest // here.rates.ranks_per_node
    ranks, experts = np.nonzero(held)
    first, second = np.triu_indices(len(ranks), 1)
    touches = near[ranks] | held[near].any(0)[experts]
    kept = (ranks[first] < ranks[second]) & (experts[first] != experts[second]) & (touches[first] | touches[second])
    first, second = first[kept], second[kept]
    bounds = ExchangeBounds(here)
    bounds_s = bounds.slowest_s(ranks, experts, first, second)
    left = np.flatnonzero(bounds_s < np.inf)
    found = np.stack([each[of[left]] for each in (ranks, experts) for of in (first, second)], axis=1)
    order = np.lexsort(found.T[::-1])
    found = found[order]
    return found, np.maximum(bounds_s[left][order], bounds.rest_s(found))


def _exchanges_s(here: Neighbours, exchanges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the time after each exchange [n, 4]."""
    ones, columns = np.eye(len(here.placement), dtype=np.int64), here.placement.T
    rank, other_rank, expert, other = exchanges.T
    moved = ones[other_rank] - ones[rank]
    return here.times_s(exchanges[:, 2:], np.stack([columns[expert] + moved, columns[other] - moved], axis=1))


def _first_least(times_s: NDArray[np.float64], bound_s: float) -> int | None:
    """Return the first of the least times, up to rounding; None unless it is less than a bound."""
    if not len(times_s) or times_s.min() >= bound_s - _LEAST_GAIN_S:
        return None
    return int(np.flatnonzero(times_s <= times_s.min() + _LEAST_GAIN_S)[0])
