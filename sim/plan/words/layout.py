"""The layout of a tensor over the mesh: per axis sharded, replicated or partial (torch DTensor's words)."""

from collections.abc import Iterable

from msgspec import Struct

from sim.plan.errors import LayoutError
from sim.plan.words.mesh import Mesh


class Shard(Struct, frozen=True):
    """Each rank of the axis holds an equal slice along ``dim``."""

    dim: int


class Partial(Struct, frozen=True):
    """Each rank of the axis holds a term of a sum, and the sum is the tensor."""


PARTIAL = Partial()


class Layout(Struct, frozen=True):
    """The axes over which a tensor is not replicated, in sharding order.

    If two axes shard one dimension, the first makes the larger slices. The tensor is replicated over all other axes.
    """

    placements: tuple[tuple[str, Shard | Partial], ...] = ()

    def get(self, axis: str) -> Shard | Partial | None:
        """Return the placement on an axis, None if the tensor is replicated over it."""
        return dict(self.placements).get(axis)

    def without(self, *axes: str) -> "Layout":
        """Return this layout with the named axes replicated."""
        return Layout(tuple(item for item in self.placements if item[0] not in axes))

    def with_(self, axis: str, placement: Shard | Partial | None) -> "Layout":
        """Return this layout with another placement on one axis (a new one goes last)."""
        if placement is None:
            return self.without(axis)
        if self.get(axis) is None:
            return Layout((*self.placements, (axis, placement)))
        return Layout(tuple((a, placement if a == axis else p) for a, p in self.placements))

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """Return the axes over which the tensor is still to be summed."""
        return tuple(axis for axis, placement in self.placements if isinstance(placement, Partial))

    def shard_axes(self, dim: int) -> tuple[str, ...]:
        """Return the axes that shard a dimension, largest slices first."""
        return tuple(axis for axis, placement in self.placements if placement == Shard(dim))

    def local_shape(self, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
        """Return the shape of one rank's slice of a tensor of global ``shape``.

        Raises LayoutError if a sharded dimension does not divide evenly.
        """
        local = list(shape)
        for axis, placement in self.placements:
            if not isinstance(placement, Shard):
                continue
            degree = mesh.degree(axis)
            if local[placement.dim] % degree:
                raise LayoutError(
                    f"dimension {placement.dim} of shape {shape} does not divide by {degree} (axis {axis!r})"
                )
            local[placement.dim] //= degree
        return tuple(local)


REPLICATED = Layout()


def sharded(dim: int, axes: Iterable[str]) -> Layout:
    """Return the layout that shards one dimension over the axes, in order."""
    return Layout(tuple((axis, Shard(dim)) for axis in axes))
