"""Which slice of a global tensor a rank holds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from sim.plan.words.buffer import Buffer
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.mesh import Mesh


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


def flat_piece(tensors: Sequence[Tensor], index: int, size: int) -> Tensor:
    """Return a copy of the ``index``-th piece of ``size`` elements of the concatenation of flattened tensors.

    Zeros past its end. Tensors of which nothing lies in the piece are not touched.
    """
    piece = tensors[0].new_empty(size)
    filled = 0
    for part, place in _parts(tensors, index, size):
        piece[place] = part
        filled = place.stop
    piece[filled:].zero_()
    return piece


def write_piece(tensors: Sequence[Tensor], index: int, piece: Tensor) -> None:
    """Write the ``index``-th piece of the concatenation of flattened tensors; what is past its end is dropped."""
    for part, place in _parts(tensors, index, piece.numel()):
        part.copy_(piece[place])


def _parts(tensors: Sequence[Tensor], index: int, size: int) -> Iterator[tuple[Tensor, slice]]:
    """Yield views of what lies in a piece of the concatenation, in order, and where in the piece."""
    start = index * size
    for tensor in tensors:
        begin, end = max(start, 0), min(start + size, tensor.numel())
        if begin < end:
            yield tensor.view(-1)[begin:end], slice(begin - start, end - start)
        start -= tensor.numel()
