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
    """Return a copy of piece number ``index``, of ``size`` elements, of the concatenation of flattened tensors.

    A piece past the end of the concatenation is padded with zeros. Tensors outside the piece are not read.
    """
    piece = tensors[0].new_empty(size)
    filled = 0
    for part, place in _parts(tensors, index, size):
        piece[place] = part
        filled = place.stop
    piece[filled:].zero_()
    return piece


def write_piece(tensors: Sequence[Tensor], index: int, piece: Tensor) -> None:
    """Write piece number ``index`` of the concatenation of flattened tensors; padding past its end is dropped."""
    for part, place in _parts(tensors, index, piece.numel()):
        part.copy_(piece[place])


def _parts(tensors: Sequence[Tensor], index: int, size: int) -> Iterator[tuple[Tensor, slice]]:
    """Yield, in order, views of the tensors' parts inside a piece of the concatenation, and their slices of it."""
    start = index * size
    for tensor in tensors:
        begin, end = max(start, 0), min(start + size, tensor.numel())
        if begin < end:
            yield tensor.view(-1)[begin:end], slice(begin - start, end - start)
        start -= tensor.numel()
