"""Random numbers that do not depend on how the work is divided."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.torch.values.hashing import bits, bits_by_torch, global_index, integers, key_of, normal, uniform
from backends.torch.values.randomness import initial_normal, kept_by_dropout, token_ids
from backends.torch.values.slicing import cut
from sim.plan.facts.slices import local_slice
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.mesh import Mesh

CPU = torch.device("cpu")


def splitmix64(state: int) -> int:
    """Return the splitmix64 finaliser of a 64-bit number, in Python's own integers."""
    mask = 2**64 - 1
    z = state & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62))
def test_bits_are_splitmix64_twice(key: int, index: int) -> None:
    """numpy's and torch's wrapping arithmetic gives the published generator's numbers, whole and without low bits."""
    expected = splitmix64(splitmix64(index * 0x9E3779B97F4A7C15 + key))
    for given_by in (bits, bits_by_torch):
        for unused in (0, 1, 11):
            assert int(given_by(key, torch.tensor([index]), unused)) % 2**64 == expected >> unused


def test_numbers_are_distributed_as_they_say() -> None:
    """Mean and spread of 200,000 numbers; every integer below the bound comes up."""
    index = torch.arange(200_000)
    flat, bell = uniform(key_of("u"), index), normal(key_of("n"), index)
    assert float(flat.min()) >= 0.0
    assert float(flat.max()) < 1.0
    assert float(flat.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(flat.var()) == pytest.approx(1 / 12, abs=0.002)
    assert float(bell.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(bell.std()) == pytest.approx(1.0, abs=0.01)
    assert float((bell**4).mean()) == pytest.approx(3.0, abs=0.1)
    counts = torch.bincount(integers(key_of("i"), index, 7), minlength=7)
    assert counts.shape == (7,)
    assert float(counts.min()) == pytest.approx(200_000 / 7, rel=0.03)


def test_keys_depend_on_every_part() -> None:
    """Seed, step and salt each give other numbers; so does moving a letter from one part to the next."""
    keys = {key_of("a", 1, 2), key_of("a", 2, 1), key_of("b", 1, 2), key_of("a", 12), key_of("a1", 2)}
    assert len(keys) == 5


def test_global_index_counts_row_major() -> None:
    """The slice [1:3, 2:4] of a 3 x 4 tensor."""
    assert global_index((3, 4), (torch.tensor([1, 2]), torch.tensor([2, 3]))).tolist() == [[6, 7], [10, 11]]


@given(
    st.sampled_from(
        [(("tp", 0),), (("tp", 1),), (("dp", 0), ("tp", 0)), (("tp", 0), ("dp", 0)), (("dp", 1), ("tp", 0))]
    )
)
def test_slices_of_a_parameter_make_the_whole(placements: tuple[tuple[str, int], ...]) -> None:
    """Each rank's own draw is its slice of the whole draw, along one dimension, over two axes, in any order."""
    mesh, shape = Mesh((("dp", 2), ("tp", 3))), (12, 6)
    layout = Layout(tuple((axis, Shard(dim)) for axis, dim in placements))
    whole = initial_normal(1, "w", shape, (0, 0), shape, device=CPU)
    seen = torch.zeros(shape)
    for rank in range(mesh.size):
        place = local_slice(shape, layout, mesh, rank)
        assert place.sizes == layout.local_shape(shape, mesh)
        assert torch.equal(initial_normal(1, "w", shape, *place, device=CPU), cut(whole, place))
        cut(seen, place).add_(1)
    copies = mesh.size // mesh.degree(*(axis for axis, _ in placements))
    assert (seen == copies).all()


def test_first_named_axis_makes_the_larger_slices() -> None:
    """Sharded over dp then tp, rank (dp 1, tp 0) starts in the middle."""
    mesh = Mesh((("dp", 2), ("tp", 3)))
    layout = Layout((("dp", Shard(0)), ("tp", Shard(0))))
    assert [local_slice((12,), layout, mesh, rank).starts[0] for rank in range(6)] == [0, 2, 4, 6, 8, 10]
    swapped = Layout((("tp", Shard(0)), ("dp", Shard(0))))
    assert [local_slice((12,), swapped, mesh, rank).starts[0] for rank in range(6)] == [0, 4, 8, 2, 6, 10]


def test_tokens_of_micro_batches_make_the_global_batch() -> None:
    """Sample 5 has the same tokens whoever asks for it; another step has others."""
    places = torch.arange(10)
    whole = token_ids(3, 0, first_sample=0, num_samples=8, positions=places, vocab_size=50)
    part = token_ids(3, 0, first_sample=4, num_samples=2, positions=places, vocab_size=50)
    later = token_ids(3, 1, first_sample=0, num_samples=8, positions=places, vocab_size=50)
    assert torch.equal(whole[:, 4:6], part)
    assert not torch.equal(whole, later)
    assert len(set(map(tuple, whole.T.tolist()))) == 8


def test_dropout_of_micro_batches_makes_the_global_batch() -> None:
    """The mask of samples 4 and 5 is cut from the global batch's, also of some of its rows alone."""
    common: dict[str, Any] = {"batch_dim": 1, "probability": 0.5}
    rows, samples, hidden = torch.arange(6), torch.arange(8), torch.arange(4)
    whole = kept_by_dropout(9, (6, 8, 4), (rows, samples, hidden), first_sample=0, **common)
    places = (torch.tensor([0, 3, 4]), samples[:2], hidden)
    part = kept_by_dropout(9, (6, 2, 4), places, first_sample=4, **common)
    assert torch.equal(whole[[0, 3, 4], 4:6], part)
