"""The slice of a global tensor that a rank holds."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.plan.words.buffer import Buffer
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.mesh import Mesh


class Slice(NamedTuple):
    """Start and size along every dimension."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]


def local_slice(global_shape: Sequence[int], layout: Layout, mesh: Mesh, rank: int) -> Slice:
    """Return a rank's slice of a tensor of ``global_shape`` under a layout."""
    starts, sizes = [0] * len(global_shape), list(global_shape)
    for axis, placement in layout.placements:
        if isinstance(placement, Shard):
            sizes[placement.dim] //= mesh.degree(axis)
            starts[placement.dim] += mesh.coordinate(rank, axis) * sizes[placement.dim]
    return Slice(tuple(starts), tuple(sizes))


def buffer_slice(buffer: Buffer, mesh: Mesh, rank: int) -> Slice:
    """Return the slice of its global tensor that a rank's buffer holds."""
    starts, sizes = (list(n) for n in local_slice(buffer.global_shape or buffer.shape, buffer.layout, mesh, rank))
    if buffer.part is not None:
        dim = buffer.part.dim
        sizes[dim] //= buffer.part.count
        starts[dim] += buffer.part.index * sizes[dim]
    return Slice(tuple(starts), tuple(sizes))
