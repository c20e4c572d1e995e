"""The axes of data parallelism: one, or several if shards are shared out inside groups of replicas.

``dp`` alone counts all replicas. With ``dp_shard`` beside it, ``dp`` counts the groups and ``dp_shard`` the ranks of
one (torch's hybrid sharding; Zhang et al. 2022, MiCS): it varies faster, so a group lies as close together as can be.
With ``dp_local`` the ranks that share one set of shards are so many neighbours, as often as the axis before counts.
With ``ep`` each rank of a group of so many has its part of the experts, and the axes before it count the groups.
Layouts of activations name ``dp`` for all of them.
With ``cp`` the ranks of a replica share its sequences. They have the same parameters, so gradients are summed over them
too, and whatever is sharded is shared out among them (Megatron-LM's distributed optimizer; PyTorch's FSDP as torchtitan
runs it, on one flat mesh of both axes).
"""

from collections.abc import Iterator
from typing import Final

from sim.plan.words.mesh import Axes, Mesh
from sim.training.spec.parallelism.mesh_axes import CONTEXT_AXIS, DATA_AXIS, EXPERT_AXIS

SHARD_AXIS = "dp_shard"
LOCAL_AXIS = "dp_local"
SAMPLE_AXES: Final = (DATA_AXIS, EXPERT_AXIS, SHARD_AXIS, LOCAL_AXIS)
"""The axes over which samples are dealt out; a mesh need not have all."""


def split_data_axis(
    axes: Axes, shard_degree: int | None, local_degree: int | None = None, expert_degree: int = 1
) -> Axes:
    """Return the axes of a mesh with groups of ``shard_degree`` replicas on axes of their own; None: one group.

    ``local_degree``: of those, neighbours; None: no such axis. ``expert_degree``: replicas of a group that share out
    experts, on an axis of their own.
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
    """Return the axes that all ranks lie along whose gradients are summed: replicas, and sharers of sequences.

    ``of_experts``: of those that ``ep`` shares out.
    """
    axes = (axis for axis in (*SAMPLE_AXES, CONTEXT_AXIS) if not (of_experts and axis == EXPERT_AXIS))
    return tuple(axis for axis in axes if mesh.degree(axis) > 1) or (DATA_AXIS,)


def shard_hops(mesh: Mesh, *, of_experts: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return the axes over which shards are shared out, in the order of the shards, by the collectives that gather.

    The last of these comes first. With neighbours on an axis of their own there are two: what is gathered among the
    ranks at one place of all neighbours, and then inside, comes in order, as neighbours hold shards that are far apart.
    ``of_experts``: shards of what ``ep`` shares out already.
    """
    base = SHARD_AXIS if _has_groups(mesh) else DATA_AXIS
    others = (CONTEXT_AXIS,) if of_experts else (EXPERT_AXIS, CONTEXT_AXIS)
    if mesh.degree(LOCAL_AXIS) > 1:
        return _present(mesh, (LOCAL_AXIS, *others)), (base,)
    return (_present(mesh, (base, *others)) or (base,),)


def shard_axes(mesh: Mesh, *, of_experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which shards are shared out, in the order of the shards; see ``shard_hops``."""
    return tuple(axis for hop in shard_hops(mesh, of_experts=of_experts) for axis in hop)


def replica_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes over which shards are the same: none where all replicas share one set."""
    return (DATA_AXIS,) if _has_groups(mesh) else ()


def _has_groups(mesh: Mesh) -> bool:
    return SHARD_AXIS in dict(mesh.axes)


def _present(mesh: Mesh, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh.degree(axis) > 1)
