"""FlexMoE as a policy of sessions: it sees how many tokens chose each expert, and places replicas for the next step.

    policy = FlexMoE(maker=PolicyMaker(rates=RATES, num_slots=2), first=shared_out(2, 4, 8), groups=((0, 1, 2, 3),))

Nie et al. 2023. The same object drives simulation and execution (``Policy`` in ``sim/plan/session/protocol.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Placement
from sim.moe.balancing.policy_maker import PolicyMaker, applied
from sim.moe.balancing.replicas import Placed, Replicas
from sim.moe.routing import Counts


class SeenCounts(Protocol):
    """What a step shows: choices by expert, of every layer and rank, micro-batch by micro-batch."""

    @property
    def observed(self) -> Mapping[str, Mapping[int, NDArray[np.float64]]]:
        """Return the values by buffer and rank."""
        ...


class Reached(Struct, frozen=True):
    """The placement that a step begins with; ``step``: how many came before it."""

    replicas: Replicas
    step: int = 0


class FlexMoE(Struct, frozen=True, kw_only=True):
    """Changes the placement of a layer's experts when its ranks are out of balance.

    ``first``: the placement of the first step. ``groups``: the ranks of the session that exchange tokens, one tuple per
    group, each in order. ``first_layer``: the first of the model's layers that has experts. ``in_background``: copies
    travel during a step in which they get no tokens, and serve from the next one on; otherwise a step begins with the
    moves that it needs. ``every``: steps from one look at a layer to the next; layers take turns. Ranks search layers
    at the same time, each its own. State: the placement that comes next.
    """

    maker: PolicyMaker
    first: Replicas
    groups: tuple[tuple[int, ...], ...]
    first_layer: int = 0
    in_background: bool = False
    every: int = 1

    @property
    def observed(self) -> frozenset[str]:
        """Return the buffers that a plan must let this policy see."""
        return frozenset(map(self._counts_of, range(len(self.first.vexperts))))

    def start(self) -> "Reached":
        """Return the placement of the first step."""
        return Reached(self.first)

    def decide(self, state: "Reached", seen: SeenCounts | None) -> "tuple[Reached, Placed]":
        """Return the placement that comes next, which is to be remembered, and what the step has."""
        if seen is None:
            return state, Placed(state.replicas)
        layers = range(len(state.replicas.vexperts))
        return self.following(state, [self._by_source(seen.observed[self._counts_of(layer)]) for layer in layers])

    def following(self, current: "Reached", counts: Sequence[Counts]) -> "tuple[Reached, Placed]":
        """Return the placement that comes next, and what the step has that follows choices [source, expert] by layer.

        ``current``: the placement with which tokens are assigned in that step, if copies travel in the background.
        """
        replicas, moved, num_changes = current.replicas, dict[int, Placement](), 0
        estimates = [0] * replicas.num_ranks
        for layer in range(-current.step % self.every, len(counts), self.every):
            placement = replicas.placement(layer)
            found = self.maker.search(counts[layer], placement)
            estimates[layer % len(estimates)] += found.num_estimates
            num_changes += len(found.changes)
            if found.changes:
                moved[layer] = applied(placement, found.changes)
        following = replicas.with_layers(moved) if moved else replicas
        now = replicas.receiving(following) if self.in_background else following
        search_s = self.maker.search_s(max(estimates), replicas.num_ranks)
        return Reached(following, current.step + 1), Placed(now, num_changes, search_s)

    def _counts_of(self, layer: int) -> str:
        return f"layer{self.first_layer + layer}.route.counts"

    def _by_source(self, by_rank: Mapping[int, NDArray[np.float64]]) -> Counts:
        """Return the choices [source, expert] of all groups and micro-batches together."""
        num_experts = len(self.first.vexperts[0][0])
        of_groups = [[by_rank[rank].reshape(-1, num_experts).sum(0) for rank in group] for group in self.groups]
        total: Counts = np.sum(of_groups, axis=0).astype(np.int64)
        return total
