"""The parts of ranks in a forced routing: choices, sent and received tokens by layer, and the roles that differ.

Ranks that share out experts get unequal numbers of rows. So each of them has a role of its own, and with it a program,
unless the routing is the same for all.

Or all of them stand for the busiest: one program, in every layer with the rows of the rank that has most there. Between
two exchanges ranks wait for the slowest, so the step takes as long, and no other rank is simulated.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.moe.balancing.replicas import LayerReplicas, Replicas
from sim.moe.routing import Counts, Routing, of_ranks
from sim.plan.functions.exact_experts import Exchange
from sim.plan.functions.node_experts import Hop
from sim.plan.functions.tracing import MAIN_STREAM
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import SizeTable
from sim.training.data.axes import SAMPLE_AXES, training_mesh
from sim.training.layers.node_copies import Nodes, NodeTraffic
from sim.training.spec.job import TrainingJob
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS
from sim.training.spec.parallelism.parallel import ParallelSpec

_INSIDE_NODES: Final = "node"


class GroupRouting(Struct, frozen=True, dict=True):
    """The routing of the ranks that share experts: ``counts``[layer, source, expert].

    ``first_layer``: the first of the model's layers that has experts. ``replicas``: where experts lie, if copies of
    some lie on several ranks; else each rank has an equal part of them, in order. ``nodes``: on which ranks lie, where
    a token is sent to each once.
    """

    counts: Counts
    first_layer: int
    replicas: Replicas | None = None
    nodes: Nodes | None = None

    def over_nodes(self, layer: int) -> NodeTraffic:
        """Return the rows that travel by way of relays; only where a token is sent to each node once."""
        return self._over_nodes[layer - self.first_layer]

    @cached_property
    def _over_nodes(self) -> list[NodeTraffic]:
        """Return the traffic of every layer."""
        assert self.nodes is not None
        return [NodeTraffic(counts, self.nodes) for counts in self.counts]

    def sizes(self, layer: int) -> SizeTable:
        """Return the rows that each rank sends to each."""
        return self._sizes[layer - self.first_layer]

    def assigned(self, layer: int) -> Counts:
        """Return the tokens [source, expert, rank] that go to each copy; only where experts have replicas."""
        return self._assigned[layer - self.first_layer]

    def placement(self, layer: int) -> LayerReplicas:
        """Return where the experts of a layer lie; only where experts have replicas."""
        return self._placements[layer - self.first_layer]

    @cached_property
    def _placements(self) -> list[LayerReplicas]:
        """Return the placement of every layer."""
        assert self.replicas is not None
        return [self.replicas.of_layer(index) for index in range(len(self.counts))]

    @cached_property
    def _assigned(self) -> list[Counts]:
        """Return the assignment of every layer."""
        assert self.replicas is not None
        return [self.replicas.assigned(index, counts) for index, counts in enumerate(self.counts)]

    @cached_property
    def _sizes(self) -> list[SizeTable]:
        """Return the rows [source][rank] of every layer; all ranks share them."""
        if self.replicas is None:
            sizes = of_ranks(self.counts, self.counts.shape[1])
        else:
            sizes = np.array([assigned.sum(1) for assigned in self._assigned])
        return [SizeTable(map(tuple, of_layer)) for of_layer in sizes.tolist()]


class RankRouting(Struct, frozen=True):
    """The part of a rank in the routing of its group.

    ``place``: of the rank in its group. ``role``: the coordinates of the mesh at which ranks are routed so.
    ``busiest``: where all ranks stand for the busiest, its place in each layer with experts.
    """

    role: Mapping[str, int]
    group: GroupRouting
    place: int
    busiest: tuple[int, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes to each of which a token is sent once; 1: it is sent to every expert."""
        return self.group.nodes.number if self.group.nodes else 1

    def chosen(self, layer: int) -> tuple[int, ...]:
        """Return how often this rank's tokens choose each expert in a layer of the model."""
        return tuple(self.group.counts[layer - self.group.first_layer, self._place(layer)].tolist())

    def exchange(self, layer: int, *, eight_bits: bool) -> Exchange:
        """Return how this rank takes part in the exchange of rows of a layer; ``eight_bits``: see ``Exchange``."""
        sizes, place = self.group.sizes(layer), self._place(layer)
        return Exchange(EXPERT_AXIS, sizes, place, bool(self.busiest), eight_bits)

    def hops(self, layer: int, *, eight_bits: bool) -> tuple[Hop, Hop]:
        """Return how this rank takes part in the two hops of rows of a layer, to relays and inside nodes."""
        traffic, place = self.group.over_nodes(layer), self._place(layer)

        def hop(rows: SizeTable, counts: SizeTable, beside: str, ends: tuple[str, str]) -> Hop:
            of_rows = Exchange(EXPERT_AXIS, rows, place, bool(self.busiest), eight_bits, beside, ends)
            return Hop(of_rows, replace(of_rows, sizes=counts))

        inside = f"{EXPERT_AXIS}_{_INSIDE_NODES}"
        return (
            hop(traffic.across, traffic.counts_across, "", (MAIN_STREAM, inside)),
            hop(traffic.within, traffic.counts_within, _INSIDE_NODES, (inside, MAIN_STREAM)),
        )

    def sizes(self, layer: int) -> SizeTable:
        """Return the rows that each rank of the group sends to each."""
        return self.group.sizes(layer)

    def rows(self, layer: int) -> tuple[int, ...]:
        """Return the rows of each expert that this rank has."""
        group = self.group
        if group.replicas is not None:
            return tuple(group.assigned(layer)[:, self.held(layer), self.place].sum(0).tolist())
        num_own = group.counts.shape[2] // group.counts.shape[1]
        first = self._place(layer) * num_own
        return tuple(group.counts[layer - group.first_layer, :, first : first + num_own].sum(0).tolist())

    def _place(self, layer: int) -> int:
        """Return the place of the rank whose rows a layer has."""
        return self.busiest[layer - self.group.first_layer] if self.busiest else self.place

    def held(self, layer: int) -> tuple[int, ...]:
        """Return the experts that this rank has a copy of; only where experts have replicas."""
        assert self.group.replicas is not None
        return self.group.replicas.held(layer - self.group.first_layer, self.place)

    def holders(self, layer: int, expert: int) -> tuple[int, ...]:
        """Return the ranks of the group that have a copy of an expert; only where experts have replicas."""
        assert self.group.replicas is not None
        return self.group.replicas.holders(layer - self.group.first_layer, expert)

    def placement(self, layer: int) -> LayerReplicas:
        """Return where the experts of a layer lie; only where experts have replicas."""
        return self.group.placement(layer)

    def shadows(self, layer: int) -> tuple[int, ...]:
        """Return the experts of a layer that all ranks have for this step; only where experts have replicas."""
        assert self.group.replicas is not None
        return self.group.replicas.shadowed(layer - self.group.first_layer)


def rank_routings(
    routing: Routing, mesh: Mesh, first_layer: int, replicas: Replicas | None = None, nodes: Nodes | None = None
) -> Iterator[RankRouting]:
    """Yield the routing of every role; of one alone, of no coordinates, where all ranks have as many rows.

    ``first_layer``: the first of the model's layers that has experts. ``replicas``, ``nodes``: see ``GroupRouting``.
    """
    axes = source_axes(routing.num_sources, mesh)
    if replicas is None and _is_alike(routing, mesh.degree(EXPERT_AXIS)):
        axes = ()
    groups: dict[tuple[int, ...], GroupRouting] = {}
    for coordinates in product(*(range(mesh.degree(axis)) for axis in axes)):
        role = dict(zip(axes, coordinates, strict=True))
        rank = mesh.rank(role)
        sources = tuple(source_of(member, routing.num_sources, mesh) for member in mesh.group(rank, (EXPERT_AXIS,)))
        if sources not in groups:
            groups[sources] = GroupRouting(routing.counts[:, sources], first_layer, replicas, nodes)
        yield RankRouting(role, groups[sources], mesh.index(rank, (EXPERT_AXIS,)))


def busiest_routing(
    routing: Routing, parallel: ParallelSpec, first_layer: int, nodes: Nodes | None = None
) -> RankRouting:
    """Return the routing of ranks that all stand for the busiest: of the group and of the place with most, by layer."""
    counts = group_counts(routing, parallel)
    loads, layers = of_ranks(counts.sum(2), parallel.expert_degree), np.arange(len(counts))
    group = loads.max(2).argmax(1)
    busiest = tuple(loads[layers, group].argmax(1).tolist())
    return RankRouting({}, GroupRouting(counts[layers, group], first_layer, nodes=nodes), 0, busiest)


def group_counts(routing: Routing, parallel: ParallelSpec) -> Counts:
    """Return the choices [layer, group, source, expert] of every group of ranks that share out experts."""
    mesh = training_mesh(parallel)
    axes = [axis for axis in source_axes(routing.num_sources, mesh) if axis != EXPERT_AXIS]
    first = [
        mesh.rank(dict(zip(axes, place, strict=True))) for place in product(*(range(mesh.degree(a)) for a in axes))
    ]
    sources = [
        [source_of(member, routing.num_sources, mesh) for member in mesh.group(rank, (EXPERT_AXIS,))] for rank in first
    ]
    return routing.counts[:, sources]


def loads_of_ranks(job: TrainingJob) -> Counts:
    """Return the rows [layer, group, rank] of ranks that share out experts, of a job with a forced routing."""
    routing, experts = job.routing, job.model.experts
    assert routing is not None
    assert experts is not None
    counts, replicas = group_counts(routing, job.parallel), experts.replicas
    if replicas is None:
        return of_ranks(counts.sum(2), job.parallel.expert_degree)
    found: Counts = np.array(
        [[replicas.assigned(n, group).sum((0, 1)) for group in of_layer] for n, of_layer in enumerate(counts)]
    )
    return found


def forced_of_replicas(job: TrainingJob, layer: int) -> list[tuple[int, ...]]:
    """Return how often each data-parallel rank chooses each expert of a layer, in the order in which samples are dealt.

    Empty where no routing is forced.
    """
    routing, experts = job.routing, job.model.experts
    if routing is None or experts is None:
        return []
    mesh, counts = training_mesh(job.parallel), routing.counts[layer - experts.first_dense_layers]
    sources = [source_of(rank, routing.num_sources, mesh) for rank in mesh.group(0, SAMPLE_AXES)]
    return [tuple(counts[source].tolist()) for source in sources]


def places_of_experts(job: TrainingJob) -> tuple[Fraction, ...]:
    """Return each data-parallel rank's place, from 0 to 1, among those that share out experts, in dealing order."""
    mesh = training_mesh(job.parallel)
    places = [mesh.index(rank, (EXPERT_AXIS,)) for rank in mesh.group(0, SAMPLE_AXES)]
    return tuple(Fraction(place, job.parallel.expert_degree) for place in places)


def source_axes(num_sources: int, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which a routing's sources lie: that of shared experts, or all of data parallelism's."""
    axes = (EXPERT_AXIS,) if num_sources == mesh.degree(EXPERT_AXIS) else SAMPLE_AXES
    return tuple(axis for axis in axes if mesh.degree(axis) > 1)


def source_of(rank: int, num_sources: int, mesh: Mesh) -> int:
    """Return which source of a routing a rank is."""
    return mesh.index(rank, source_axes(num_sources, mesh))


def _is_alike(routing: Routing, num_ranks: int) -> bool:
    """Return whether all sources choose alike, and ranks that share out experts have as many rows of each of theirs."""
    counts = routing.counts
    own = counts.reshape(*counts.shape[:2], num_ranks, -1)
    return bool(np.all(counts == counts[:, :1]) and np.all(own == own[:, :, :1]))
