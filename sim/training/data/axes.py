"""The mesh axes of data parallelism: ``dp`` alone, or several axes where only groups of replicas shard their state.

Axes of a mesh, from the slowest to the fastest:
``dp``: all replicas; with ``dp_shard``, the groups of replicas.
``dp_shard``: the ranks of one group (torch's hybrid sharding; Zhang et al. 2022, MiCS). This axis varies faster than
    ``dp``, so that the ranks of a group lie close together.
``dp_local``: the neighbours of a group on an axis of their own; the axis before it then counts the sets of neighbours.
``ep``: the ranks of an expert-parallel group, each with its part of the experts; the axes before it count these groups.

Layouts of activations name ``dp`` for all of these axes. Along the axes of context parallelism the ranks of a replica
split its sequences. They hold the same parameters, so gradients are also summed over these axes, and state is sharded
over them too (Megatron-LM's distributed optimizer; PyTorch's FSDP as torchtitan runs it, on one flat mesh of both
axes).
"""

from collections.abc import Iterator
from typing import Final

from sim.plan.words.mesh import Axes, Mesh
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, EXPERT_AXIS, context_axes
from sim.training.spec.parallelism.parallel import ParallelSpec

SHARD_AXIS = "dp_shard"
LOCAL_AXIS = "dp_local"
SAMPLE_AXES: Final = (DATA_AXIS, EXPERT_AXIS, SHARD_AXIS, LOCAL_AXIS)
"""The axes that split the samples of a batch; a mesh need not have all of them."""


def training_mesh(parallel: ParallelSpec) -> Mesh:
    """Return the mesh of a strategy, the axis of data parallelism split as it needs."""
    sharding = parallel.sharding
    axes = split_data_axis(parallel.mesh_axes, sharding.shard_degree, sharding.local_degree, parallel.expert_degree)
    return Mesh(axes, parallel.tensor.blocks)


def split_data_axis(
    axes: Axes, shard_degree: int | None, local_degree: int | None = None, expert_degree: int = 1
) -> Axes:
    """Return the axes of a mesh whose replicas form groups of ``shard_degree`` ranks.

    ``shard_degree``: None means one group of all replicas.
    ``local_degree``: ranks of a group on the axis of neighbours; None means no such axis.
    ``expert_degree``: ranks of a group on the axis of expert parallelism.
    """
    return tuple(_split(axes, shard_degree, local_degree or 1, expert_degree))


def _split(axes: Axes, shard_degree: int | None, local_degree: int, expert_degree: int) -> Iterator[tuple[str, int]]:
    inside = local_degree * expert_degree
    for axis, degree in axes:
        if axis != DATA_AXIS:
            yield axis, degree
            continue
        if shard_degree is not None and shard_degree < degree:
            yield axis, degree // shard_degree
            yield SHARD_AXIS, shard_degree // inside
        else:
            yield axis, degree // inside
        if local_degree > 1:
            yield LOCAL_AXIS, local_degree
        if expert_degree > 1:
            yield EXPERT_AXIS, expert_degree


def sum_axes(mesh: Mesh, *, of_experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which gradients are summed: those of replicas and of context parallelism.

    ``of_experts``: for gradients of experts that are split over ``ep``.
    """
    axes = (axis for axis in (*SAMPLE_AXES, *context_axes(mesh)) if not (of_experts and axis == EXPERT_AXIS))
    return tuple(axis for axis in axes if mesh.degree(axis) > 1) or (DATA_AXIS,)


def shard_hops(mesh: Mesh, *, of_experts: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return the axes over which state is sharded, in shard order: one tuple of axes per all_gather.

    The all_gather over the last tuple runs first. With ``dp_local`` there are two: the first joins ranks at the same
    place among their neighbours, the second joins neighbours. Neighbours hold shards that are far apart, so the
    gathered shards are in order.
    ``of_experts``: for shards of experts that are already split over ``ep``.
    """
    base = SHARD_AXIS if _has_groups(mesh) else DATA_AXIS
    others = context_axes(mesh) if of_experts else (EXPERT_AXIS, *context_axes(mesh))
    if mesh.degree(LOCAL_AXIS) > 1:
        return _present(mesh, (LOCAL_AXIS, *others)), (base,)
    return (_present(mesh, (base, *others)) or (base,),)


def shard_axes(mesh: Mesh, *, of_experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which state is sharded, in shard order; see ``shard_hops``."""
    return tuple(axis for hop in shard_hops(mesh, of_experts=of_experts) for axis in hop)


def replica_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes over which shards are replicated; empty where all replicas together hold one set of shards."""
    return (DATA_AXIS,) if _has_groups(mesh) else ()


def _has_groups(mesh: Mesh) -> bool:
    return SHARD_AXIS in dict(mesh.axes)


def _present(mesh: Mesh, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh.degree(axis) > 1)
