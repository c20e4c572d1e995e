"""Slices and flat pieces of tensors."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from sim.plan.facts.slices import Slice


def cut(tensor: Tensor, place: Slice) -> Tensor:
    """Return a slice of a global tensor, as a view."""
    for dim, (start, size) in enumerate(zip(place.starts, place.sizes, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


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
