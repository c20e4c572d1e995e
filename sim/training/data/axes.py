"""The axes of data parallelism: one, or two where shards are shared out inside groups that are replicas of each other.

``dp`` alone counts all replicas. With ``dp_shard`` beside it, ``dp`` counts the groups and ``dp_shard`` the ranks of
one (torch's hybrid sharding; Zhang et al. 2022, MiCS): it varies faster, so a group lies as close together as can be.
Layouts of activations name ``dp`` for both.
"""

from collections.abc import Iterator

from sim.plan.mesh import Mesh
from sim.training.transformer import DATA_AXIS

SHARD_AXIS = "dp_shard"

Axes = tuple[tuple[str, int], ...]
"""Names and degrees, as a mesh has them."""


def split_data_axis(axes: Axes, shard_degree: int | None) -> Axes:
    """Return the axes of a mesh with groups of ``shard_degree`` replicas on an axis of their own; None: one group."""
    return tuple(_split(axes, shard_degree))


def _split(axes: Axes, shard_degree: int | None) -> Iterator[tuple[str, int]]:
    for axis, degree in axes:
        if axis == DATA_AXIS and shard_degree is not None and shard_degree < degree:
            yield axis, degree // shard_degree
            yield SHARD_AXIS, shard_degree
        else:
            yield axis, degree


def data_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that all replicas lie along."""
    return (DATA_AXIS, SHARD_AXIS) if mesh.degree(SHARD_AXIS) > 1 else (DATA_AXIS,)


def shard_axis(mesh: Mesh) -> str:
    """Return the axis over which shards are shared out."""
    return data_axes(mesh)[-1]


def replica_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes over which shards are the same: none where all replicas share one set."""
    return data_axes(mesh)[:-1]
