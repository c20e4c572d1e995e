"""The parts of ranks in a forced routing: choices, sent and received tokens by layer, and the roles that differ.

Ranks that share out experts get unequal numbers of rows. So each of them has a role of its own, and with it a program,
unless the routing is the same for all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from sim.moe.balancing.replicas import LayerReplicas, Replicas
from sim.moe.routing import Counts, Routing, of_ranks
from sim.plan.functions.exact_experts import Sizes
from sim.plan.words.mesh import Mesh
from sim.training.data.axes import SAMPLE_AXES, training_mesh
from sim.training.spec.job import TrainingJob
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS
from sim.training.spec.parallelism.parallel import ParallelSpec


@dataclass(frozen=True)
class RankRouting:
    """The routing of a rank's group: ``counts``[layer, source, expert] of the ranks that share experts with it.

    ``place``: of the rank among these. ``role``: the coordinates of the mesh at which ranks are routed so.
    ``first_layer``: the first of the model's layers that has experts. ``replicas``: where experts lie, if copies of
    some lie on several ranks; else each rank has an equal part of them, in order.
    """

    role: Mapping[str, int]
    counts: Counts
    place: int
    first_layer: int
    replicas: Replicas | None = None

    def chosen(self, layer: int) -> tuple[int, ...]:
        """Return how often this rank's tokens choose each expert in a layer of the model."""
        return tuple(self.counts[layer - self.first_layer, self.place].tolist())

    def sizes(self, layer: int) -> Sizes:
        """Return the rows that each rank of the group sends to each."""
        to_ranks = self._to_ranks[layer - self.first_layer] if self.replicas is None else self.assigned(layer).sum(1)
        return tuple(tuple(line) for line in to_ranks.tolist())

    def rows(self, layer: int) -> tuple[int, ...]:
        """Return the rows of each expert that this rank has."""
        if self.replicas is not None:
            return tuple(self.assigned(layer)[:, self.held(layer), self.place].sum(0).tolist())
        num_own = self.counts.shape[2] // self.counts.shape[1]
        own = self.counts[layer - self.first_layer, :, self.place * num_own : (self.place + 1) * num_own]
        return tuple(own.sum(0).tolist())

    def held(self, layer: int) -> tuple[int, ...]:
        """Return the experts that this rank has a copy of; only where experts have replicas."""
        assert self.replicas is not None
        return self.replicas.held(layer - self.first_layer, self.place)

    def holders(self, layer: int, expert: int) -> tuple[int, ...]:
        """Return the ranks of the group that have a copy of an expert; only where experts have replicas."""
        assert self.replicas is not None
        return self.replicas.holders(layer - self.first_layer, expert)

    def placement(self, layer: int) -> LayerReplicas:
        """Return where the experts of a layer lie; only where experts have replicas."""
        index = layer - self.first_layer
        if index not in self._placements:
            assert self.replicas is not None
            self._placements[index] = self.replicas.of_layer(index)
        return self._placements[index]

    def assigned(self, layer: int) -> Counts:
        """Return the tokens [source, expert, rank] that go to each copy; only where experts have replicas."""
        assert self.replicas is not None
        index = layer - self.first_layer
        if index not in self._assigned:
            self._assigned[index] = self.replicas.assigned(index, self.counts[index])
        return self._assigned[index]

    @cached_property
    def _placements(self) -> dict[int, LayerReplicas]:
        """Return the placements of layers that were asked for."""
        return {}

    @cached_property
    def _assigned(self) -> dict[int, Counts]:
        """Return the assignments of layers that were asked for."""
        return {}

    @cached_property
    def _to_ranks(self) -> Counts:
        """Return the choices [layer, source, rank] that fall on experts of each rank."""
        return of_ranks(self.counts, self.counts.shape[1])


def rank_routings(
    routing: Routing, mesh: Mesh, first_layer: int, replicas: Replicas | None = None
) -> Iterator[RankRouting]:
    """Yield the routing of every role; of one alone, of no coordinates, where all ranks have as many rows.

    ``first_layer``: the first of the model's layers that has experts.
    """
    axes = source_axes(routing.num_sources, mesh)
    if replicas is None and _is_alike(routing, mesh.degree(EXPERT_AXIS)):
        axes = ()
    for coordinates in product(*(range(mesh.degree(axis)) for axis in axes)):
        role = dict(zip(axes, coordinates, strict=True))
        rank = mesh.rank(role)
        sources = [source_of(member, routing.num_sources, mesh) for member in mesh.group(rank, (EXPERT_AXIS,))]
        place = mesh.index(rank, (EXPERT_AXIS,))
        yield RankRouting(role, routing.counts[:, sources], place, first_layer, replicas)


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
