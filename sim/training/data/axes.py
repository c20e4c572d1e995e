"""The axes of data parallelism: one, or several if shards are shared out inside groups of replicas.

``dp`` alone counts all replicas. With ``dp_shard`` beside it, ``dp`` counts the groups and ``dp_shard`` the ranks of
one (torch's hybrid sharding; Zhang et al. 2022, MiCS): it varies faster, so a group lies as close together as can be.
With ``dp_local`` the ranks that share one set of shards are so many neighbours, as often as the axis before counts.
With ``ep`` each rank of a group of so many has its part of the experts, and ``dp`` counts the groups.
Layouts of activations name ``dp`` for all of them.
With ``cp`` the ranks of a replica share its sequences. They have the same parameters, so gradients are summed over them
too, and the optimizer state is shared out among them (Megatron-LM).
"""

from collections.abc import Iterator
from typing import Final

from sim.plan.words.mesh import Axes, Mesh
from sim.training.spec.parallelism.mesh_axes import CONTEXT_AXIS, DATA_AXIS, EXPERT_AXIS

SHARD_AXIS = "dp_shard"
LOCAL_AXIS = "dp_local"
SAMPLE_AXES: Final = (DATA_AXIS, EXPERT_AXIS, SHARD_AXIS, LOCAL_AXIS)
"""The axes over which samples are dealt out; a mesh need not have all."""


def split_data_axis(axes: Axes, shard_degree: int | None, local_degree: int | None = None) -> Axes:
    """Return the axes of a mesh with groups of ``shard_degree`` replicas on axes of their own; None: one group.

    ``local_degree``: of those, neighbours; None: no such axis.
    """
    return tuple(_split(axes, shard_degree, local_degree or 1))


def split_experts(axes: Axes, expert_degree: int) -> Axes:
    """Return the axes of a mesh with the ``expert_degree`` replicas that share out experts on an axis of their own."""
    if expert_degree == 1:
        return axes
    place = next(index for index, (axis, _) in enumerate(axes) if axis == DATA_AXIS)
    parts = ((DATA_AXIS, axes[place][1] // expert_degree), (EXPERT_AXIS, expert_degree))
    return (*axes[:place], *parts, *axes[place + 1 :])


def _split(axes: Axes, shard_degree: int | None, local_degree: int) -> Iterator[tuple[str, int]]:
    for axis, degree in axes:
        if axis != DATA_AXIS:
            yield axis, degree
        elif shard_degree is not None and shard_degree < degree:
            yield axis, degree // shard_degree
            yield SHARD_AXIS, shard_degree // local_degree
        else:
            yield axis, degree // local_degree
        if axis == DATA_AXIS and local_degree > 1:
            yield LOCAL_AXIS, local_degree


def data_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that all ranks lie along whose gradients are summed: replicas, and sharers of sequences."""
    return tuple(axis for axis in (*SAMPLE_AXES, CONTEXT_AXIS) if mesh.degree(axis) > 1) or (DATA_AXIS,)


def sum_axes(mesh: Mesh, *, of_experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which replicas' gradients are summed; ``of_experts``: those that ``ep`` shares out."""
    axes = (DATA_AXIS, CONTEXT_AXIS) if of_experts else (DATA_AXIS, EXPERT_AXIS, CONTEXT_AXIS)
    return tuple(axis for axis in axes if mesh.degree(axis) > 1) or (DATA_AXIS,)


def shard_axes(mesh: Mesh, *, of_experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which shards are shared out, in the order of the shards.

    ``of_experts``: shards of what ``ep`` shares out already.
    Neighbours hold shards that are far apart, so that those of the ranks at one place among their neighbours are one
    run: what is gathered over the last axis, and then over the first, comes in order.
    """
    if mesh.degree(EXPERT_AXIS, CONTEXT_AXIS) > 1:
        return sum_axes(mesh, of_experts=of_experts)
    base = SHARD_AXIS if mesh.degree(SHARD_AXIS) > 1 else DATA_AXIS
    return (LOCAL_AXIS, base) if mesh.degree(LOCAL_AXIS) > 1 else (base,)


def replica_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes over which shards are the same: none where all replicas share one set."""
    return (DATA_AXIS,) if mesh.degree(SHARD_AXIS) > 1 else ()
