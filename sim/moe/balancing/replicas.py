"""Where the experts of each layer lie: on one rank of those that share them out, or as replicas on several."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Placement, assigned, in_whole_tokens
from sim.moe.errors import RoutingError
from sim.moe.routing import Counts


class LayerReplicas(Struct, frozen=True, dict=True):
    """The placement of one layer's experts, known to every rank: with the counts of all it says which copy gets what.

    ``vexperts`` [rank][expert]: equal shares of an expert's tokens. ``held`` [rank]: the experts it has a copy of.
    ``shadows``: experts that all ranks have for this step, each for its own tokens.
    """

    vexperts: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]
    shadows: tuple[int, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks that share out the experts."""
        return len(self.vexperts)

    @property
    def most_held(self) -> int:
        """Return the largest number of experts that a rank has a copy of."""
        return max(map(len, self.held))

    def assigned(self, counts: Counts) -> Counts:
        """Return whole tokens [source, expert, rank] of the choices [source, expert]; see ``balancing.assignment``."""
        tokens = in_whole_tokens(assigned(counts, np.array(self.vexperts, dtype=np.int64)), counts)
        ranks = np.arange(len(counts))
        for expert in self.shadows:
            tokens[:, expert] = 0
            tokens[ranks, expert, ranks] = counts[:, expert]
        return tokens

    def __hash__(self) -> int:
        """Return a number that is computed once: plans of many ranks name one placement often."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.vexperts, self.held, self.shadows))


class Replicas(Struct, frozen=True, dict=True):
    """The vExperts of every layer [layer][rank][expert]: equal shares of an expert's tokens (Nie et al. 2023, FlexMoE).

    A rank with several vExperts of an expert has one copy of it. ``arriving``: copies [layer][rank] that come to a rank
    in this step, get no tokens yet, and take part in the sum of gradients and the update at its end; empty: none come.
    ``shadows``: experts [layer] whose weights all ranks get for this step alone, for their own tokens (He et al. 2022,
    FasterMoE); gradients of shadows are added to those of the copy that they came from. Empty: there are none.
    Raises RoutingError for an expert without any vExpert, and for layers of unequal sizes.
    """

    vexperts: tuple[tuple[tuple[int, ...], ...], ...]
    arriving: tuple[tuple[tuple[int, ...], ...], ...] = ()
    shadows: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        sizes = {(len(layer), len(line)) for layer in self.vexperts for line in layer}
        if len(sizes) != 1:
            rule = f"layers have {sorted(sizes)} ranks and experts"
            raise RoutingError(rule, "place the same experts on the same ranks in all layers")
        missing = np.argwhere(self.table.sum(1) < 1)
        if len(missing):
            layer, expert = missing[0]
            raise RoutingError(f"expert {expert} of layer {layer} lies on no rank", "give every expert a vExpert")

    @classmethod
    def of(cls, placements: "np.ndarray | list[Placement]") -> "Replicas":
        """Return the replicas of placements [layer, rank, expert]."""
        return cls(tuple(tuple(tuple(int(n) for n in line) for line in layer) for layer in placements))

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks that share out the experts."""
        return len(self.vexperts[0])

    def placement(self, layer: int) -> Placement:
        """Return the vExperts of a layer [rank, expert]."""
        placement: Placement = self.table[layer]
        return placement

    @cached_property
    def table(self) -> Placement:
        """Return the vExperts [layer, rank, expert]."""
        table: Placement = np.array(self.vexperts, dtype=np.int64)
        return table

    @cached_property
    def on_the_way(self) -> NDArray[np.bool_]:
        """Return whether a copy is on its way [layer, rank, expert]."""
        found = np.zeros(self.table.shape, dtype=np.bool_)
        for layer, ranks in enumerate(self.arriving):
            for rank, experts in enumerate(ranks):
                if experts:
                    found[layer, rank, list(experts)] = True
        return found

    def held(self, layer: int, rank: int) -> tuple[int, ...]:
        """Return the experts of a layer that a rank has a copy of."""
        return self._held[layer][rank]

    @cached_property
    def _held(self) -> list[list[tuple[int, ...]]]:
        """Return the experts [layer][rank] that ranks have copies of."""
        has = (self.table > 0) | self.on_the_way
        for layer in range(len(self.shadows)):
            has[layer][:, list(self.shadowed(layer))] = True
        return [[tuple(np.flatnonzero(line).tolist()) for line in of_layer] for of_layer in has]

    def shadowed(self, layer: int) -> tuple[int, ...]:
        """Return the experts of a layer that all ranks have for this step."""
        return self.shadows[layer] if self.shadows else ()

    def holders(self, layer: int, expert: int) -> tuple[int, ...]:
        """Return the ranks that have a copy of an expert."""
        return self._holders[layer][expert]

    @cached_property
    def _holders(self) -> list[list[tuple[int, ...]]]:
        """Return the ranks [layer][expert] that have copies of experts."""
        has = ((self.table > 0) | self.on_the_way).transpose(0, 2, 1)
        return [[tuple(np.flatnonzero(line).tolist()) for line in of_layer] for of_layer in has]

    @property
    def num_copies(self) -> int:
        """Return the number of copies and shadows that ranks have, of all layers."""
        has = (self.table > 0) | self.on_the_way
        shadows = [(layer, expert) for layer, experts in enumerate(self.shadows) for expert in experts]
        return int(np.count_nonzero(has)) + sum(int((~has[layer, :, expert]).sum()) for layer, expert in shadows)

    @property
    def num_arriving(self) -> int:
        """Return the number of copies on their way, of all layers."""
        return int(np.count_nonzero(self.on_the_way))

    def receiving(self, following: "Replicas") -> "Replicas":
        """Return the placement with the copies on their way that the following one has besides."""
        comes = (following.table > 0) & ~((self.table > 0) | self.on_the_way)
        if not comes.any():
            return Replicas(self.vexperts, ()) if self.arriving else self
        arriving: list[list[tuple[int, ...]]] = [[()] * self.num_ranks for _ in self.vexperts]
        for layer, rank in np.argwhere(comes.any(2)).tolist():
            arriving[layer][rank] = tuple(np.flatnonzero(comes[layer, rank]).tolist())
        return Replicas(self.vexperts, tuple(map(tuple, arriving)))

    def with_layers(self, placements: Mapping[int, Placement]) -> "Replicas":
        """Return the replicas with other placements [rank, expert] of some layers, and no copies on their way."""
        layers = list(self.vexperts)
        for layer, placement in placements.items():
            layers[layer] = tuple(map(tuple, placement.tolist()))
        return Replicas(tuple(layers))

    def of_layer(self, layer: int) -> LayerReplicas:
        """Return the placement of one layer."""
        return LayerReplicas(
            self.vexperts[layer], tuple(self.held(layer, rank) for rank in range(self.num_ranks)), self.shadowed(layer)
        )

    def assigned(self, layer: int, counts: Counts) -> Counts:
        """Return whole tokens [source, expert, rank] of the choices [source, expert]; see ``balancing.assignment``."""
        return self.of_layer(layer).assigned(counts)


class Placed(Struct, frozen=True):
    """The placement of a step.

    ``num_changes``: those that the policy has just made. ``search_s``: time of a host to find them.
    """

    replicas: Replicas
    num_changes: int = 0
    search_s: float = 0.0


def shared_out(num_layers: int, num_ranks: int, num_experts: int) -> Replicas:
    """Return the placement without replicas: rank r of R has the r-th R-th of the experts."""
    line = np.repeat(np.eye(num_ranks, dtype=np.int64), num_experts // num_ranks, axis=1)
    return Replicas.of([line] * num_layers)
