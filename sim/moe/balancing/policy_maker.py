"""FlexMoE's policy maker: vExperts that are added, dropped and exchanged until ranks are balanced (algorithm 2).

Nie et al. 2023. The paper pairs the shrinking of the least loaded expert with the expansion of the most loaded, and
keeps a change only if the estimate says that it is faster. Ours: free slots and one donor are tried for the hottest
expert, then for the next ones, down to the mean load of a vExpert.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.moe.balancing.assignment import Placement
from sim.moe.balancing.estimate import Rates, estimate
from sim.moe.routing import Counts

_LEAST_GAIN_S = 1e-12


@dataclass(frozen=True, slots=True)
class Expand:
    """One more vExpert of an expert on a rank."""

    expert: int
    rank: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """One vExpert of an expert less on a rank."""

    expert: int
    rank: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """A vExpert of ``expert`` on ``rank`` changes places with one of ``other_expert`` on ``other_rank``."""

    expert: int
    rank: int
    other_expert: int
    other_rank: int


Change = Expand | Shrink | Migrate


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMaker:
    """Finds changes of a placement. ``num_slots``: vExperts that a rank has room for.

    ``threshold``: balance ratio from which it acts. ``max_changes``: steps of expansion, with or without a donor;
    ``max_migrations``: exchanges after them.
    """

    rates: Rates
    num_slots: int
    threshold: float = 1.2
    max_changes: int = 64
    max_migrations: int = 16

    def changes(self, counts: Counts, placement: Placement) -> tuple[Change, ...]:
        """Return changes that lower the estimated time of choices [source, expert], in order; none if balanced.

        Every expert must have a vExpert in ``placement`` [rank, expert].
        """
        if estimate(counts, placement, self.rates).balance_ratio <= self.threshold:
            return ()
        found: list[Change] = []
        for _ in range(self.max_changes):
            if estimate(counts, placement, self.rates).balance_ratio <= self.threshold:
                break
            step = self._expansion(counts, placement)
            if not step:
                break
            placement = applied(placement, step)
            found += step
        for _ in range(self.max_migrations):
            step = self._fastest(counts, placement, [(exchange,) for exchange in _exchanges(placement)])
            if not step:
                break
            placement = applied(placement, step)
            found += step
        return tuple(found)

    def _expansion(self, counts: Counts, placement: Placement) -> tuple[Change, ...]:
        """Return the expansion of the hottest expert that gains by one, with its donor; none if no expert gains."""
        per_replica = counts.sum(0) / placement.sum(0)
        mean = per_replica.mean()
        free = np.flatnonzero(placement.sum(1) < self.num_slots).tolist()
        for expert in np.argsort(-per_replica, kind="stable").tolist():
            candidates: list[tuple[Change, ...]] = [(Expand(expert, rank),) for rank in free]
            donors = [e for e in np.flatnonzero(placement.sum(0) > 1).tolist() if e != expert]
            if donors:
                donor = min(donors, key=lambda e: (per_replica[e], e))
                ranks = np.flatnonzero(placement[:, donor]).tolist()
                candidates += [(Shrink(donor, rank), Expand(expert, rank)) for rank in ranks]
            best = self._fastest(counts, placement, candidates)
            if best or per_replica[expert] <= mean:
                return best
        return ()

    def _fastest(
        self, counts: Counts, placement: Placement, candidates: list[tuple[Change, ...]]
    ) -> tuple[Change, ...]:
        """Return the first candidate with the least estimated time; none unless it is faster than the placement."""
        best: tuple[Change, ...] = ()
        least_s = estimate(counts, placement, self.rates).time_s - _LEAST_GAIN_S
        for candidate in candidates:
            time_s = estimate(counts, applied(placement, candidate), self.rates).time_s
            if time_s < least_s:
                best, least_s = candidate, time_s
        return best


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


def _exchanges(placement: Placement) -> Iterator[Migrate]:
    """Yield all exchanges of vExperts of two experts on two ranks."""
    held = [np.flatnonzero(row).tolist() for row in placement]
    for rank, experts in enumerate(held):
        for other_rank in range(rank + 1, len(held)):
            for expert in experts:
                yield from (Migrate(expert, rank, other, other_rank) for other in held[other_rank] if other != expert)
