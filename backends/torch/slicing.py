"""Which slice of a global tensor a rank holds."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sim.plan.buffer import Buffer
from sim.plan.layout import Layout, Shard
from sim.plan.mesh import Mesh


class Slice(NamedTuple):
    """Start and size along every dimension."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """Return the slice of a global tensor, as a view."""
        for dim, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            tensor = tensor.narrow(dim, start, size)
        return tensor


def local_slice(global_shape: Sequence[int], layout: Layout, mesh: Mesh, rank: int) -> Slice:
    """Return the slice of a tensor of ``global_shape`` that a rank holds under a layout."""
    starts, sizes = [0] * len(global_shape), list(global_shape)
    for axis, placement in layout.placements:
        if isinstance(placement, Shard):
            sizes[placement.dim] //= mesh.degree(axis)
            starts[placement.dim] += mesh.coordinate(rank, axis) * sizes[placement.dim]
    return Slice(tuple(starts), tuple(sizes))


def buffer_slice(buffer: Buffer, mesh: Mesh, rank: int) -> Slice:
    """Return the slice of its global tensor that a rank's buffer is."""
    starts, sizes = (list(n) for n in local_slice(buffer.global_shape or buffer.shape, buffer.layout, mesh, rank))
    if buffer.part is not None:
        dim = buffer.part.dim
        sizes[dim] //= buffer.part.count
        starts[dim] += buffer.part.index * sizes[dim]
    return Slice(tuple(starts), tuple(sizes))


def flat_piece(flat: Tensor, index: int, size: int) -> Tensor:
    """Return the ``index``-th piece of ``size`` elements of a flat tensor, zeros past its end."""
    piece = flat.new_zeros(size)
    own = flat[index * size : (index + 1) * size]
    piece[: own.numel()] = own
    return piece


def write_piece(tensors: Sequence[Tensor], index: int, piece: Tensor) -> None:
    """Write the ``index``-th piece of the concatenation of flattened tensors; what is past its end is dropped."""
    start = index * piece.numel()
    for tensor in tensors:
        end = min(max(start + piece.numel(), 0), tensor.numel())
        begin = min(max(start, 0), end)
        tensor.view(-1)[begin:end] = piece[begin - start : end - start]
        start -= tensor.numel()
