"""FlexMoE as a policy of sessions: it sees how many tokens chose each expert, and places replicas for the next step.

    policy = FlexMoE(maker=PolicyMaker(rates=RATES, num_slots=2), first=shared_out(2, 4, 8), groups=((0, 1, 2, 3),))

Nie et al. 2023. The same object drives simulation and execution (``Policy`` in ``sim/plan/session/protocol.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.moe.balancing.policy_maker import PolicyMaker, applied
from sim.moe.balancing.replicas import Replicas
from sim.moe.routing import Counts


class SeenCounts(Protocol):
    """What a step shows: choices by copy of an expert, of every layer and rank, micro-batch by micro-batch."""

    @property
    def observed(self) -> Mapping[str, Mapping[int, NDArray[np.float64]]]:
        """Return the values by buffer and rank."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexMoE:
    """Changes the placement of a layer's experts when its ranks are out of balance.

    ``first``: the placement of the first step. ``groups``: the ranks of the session that exchange tokens, one tuple per
    group, each in order. ``first_layer``: the first of the model's layers that has experts.
    """

    maker: PolicyMaker
    first: Replicas
    groups: tuple[tuple[int, ...], ...]
    first_layer: int = 0

    @property
    def observed(self) -> frozenset[str]:
        """Return the buffers that a plan must let this policy see."""
        return frozenset(map(self._counts_of, range(len(self.first.vexperts))))

    def start(self) -> Replicas:
        """Return the placement of the first step."""
        return self.first

    def decide(self, state: Replicas, seen: SeenCounts | None) -> tuple[Replicas, Replicas]:
        """Return the placement of the next step twice: to remember, and to build its plan."""
        if seen is None:
            return state, state
        placements = []
        for layer in range(len(state.vexperts)):
            placement = state.placement(layer)
            counts = self._by_source(state, layer, seen.observed[self._counts_of(layer)])
            placements.append(applied(placement, self.maker.changes(counts, placement)))
        following = Replicas.of(placements)
        return following, following

    def _counts_of(self, layer: int) -> str:
        return f"layer{self.first_layer + layer}.route.counts"

    def _by_source(self, state: Replicas, layer: int, by_rank: Mapping[int, NDArray[np.float64]]) -> Counts:
        """Return the choices [source, expert] of all groups and micro-batches together."""
        width = state.most_held(layer)
        found = np.zeros((state.num_ranks, len(state.vexperts[layer][0])), dtype=np.int64)
        of_copies = np.concatenate(
            [np.pad(state.held(layer, rank), (0, width - len(state.held(layer, rank)))) for rank in range(len(found))]
        ).astype(np.int64)
        for group in self.groups:
            for source, rank in enumerate(group):
                chosen = by_rank[rank].reshape(-1, len(of_copies)).sum(0)
                np.add.at(found[source], of_copies, chosen.astype(np.int64))
        return found
