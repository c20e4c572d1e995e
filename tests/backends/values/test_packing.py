"""Tensors one after another: what is laid out is their concatenation, whatever the memory held before."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.torch.values.packing import FlatMemory, unpack
from backends.torch.values.slicing import flat_piece, write_piece

SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=5)


def tensors_of(shapes: list[list[int]], first: float = 1.0) -> list[torch.Tensor]:
    """Return tensors whose elements are numbers that go on from one to the next."""
    found = []
    for shape in shapes:
        numel = torch.Size(shape).numel()
        found.append(torch.arange(first, first + numel).reshape(shape))
        first += numel
    return found


def concatenation(tensors: list[torch.Tensor], numel: int) -> torch.Tensor:
    """Return torch's own concatenation, padded with zeros to ``numel``."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, numel - flat.numel()))


@given(st.lists(st.tuples(SHAPES, st.integers(0, 5)), min_size=1, max_size=4))
def test_packed_is_the_concatenation_again_and_again(calls: list[tuple[list[list[int]], int]]) -> None:
    """What an earlier, longer call left behind is nowhere in a later one, its padding included."""
    memory = FlatMemory()
    for shapes, padding in calls:
        tensors = tensors_of(shapes)
        numel = sum(tensor.numel() for tensor in tensors) + padding
        flat = memory.packed(tensors, numel)
        assert torch.equal(flat, concatenation(tensors, numel))
        back = [torch.zeros_like(tensor) for tensor in tensors]
        unpack(flat, back)
        assert all(torch.equal(one, other) for one, other in zip(back, tensors, strict=True))


def test_uses_and_types_do_not_share_memory() -> None:
    """What is packed stays while something else is received, and so does another type's."""
    memory, one, other = FlatMemory(), [torch.ones(3)], [torch.full((3,), 2, dtype=torch.float64)]
    flat = memory.packed(one)
    memory.empty("received", 3, one[0]).fill_(7.0)
    memory.packed(other)
    assert torch.equal(flat, one[0])
    assert memory.packed(one).data_ptr() == flat.data_ptr()


@given(SHAPES, st.integers(1, 4))
def test_pieces_are_the_concatenation(shapes: list[list[int]], ranks: int) -> None:
    """All ranks' pieces one after another are the padded whole; written back, each brings its own part and no more."""
    tensors = tensors_of(shapes)
    size = -(-sum(tensor.numel() for tensor in tensors) // ranks)
    pieces = [flat_piece(tensors, rank, size) for rank in range(ranks)]
    assert torch.equal(torch.cat(pieces), concatenation(tensors, ranks * size))
    for rank, piece in enumerate(pieces):
        written = [torch.zeros_like(tensor) for tensor in tensors]
        write_piece(written, rank, piece)
        expected = torch.zeros(ranks, size)
        expected[rank] = piece
        assert torch.equal(concatenation(written, ranks * size), expected.view(-1))
