"""Memory: allocator rounding and the published activation formula."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory import allocated_bytes
from tests.activation_formulas import activation_bytes_per_layer, logits_extra_bytes

GIB = 2**30
MODELS = {
    "22B": (4, 6144, 64, 48, 1, 1),
    "175B": (1, 12288, 96, 96, 8, 3),
    "530B": (1, 20480, 128, 105, 35, 3),
    "1T": (1, 25600, 160, 128, 64, 1),
}
PUBLISHED = {
    "22B": (59.25, 9.5625),
    "175B": (66.84375, 12.3515625),
    "530B": (114.0234375, 23.076171875),
    "1T": (131.25, 26.5625),
}


@given(st.integers(0, 2**50))
def test_allocation_is_the_next_granule(num_bytes: int) -> None:
    """Every allocation is a multiple of 512 that holds the tensor and wastes less than one granule."""
    taken = allocated_bytes(num_bytes)
    assert taken % 512 == 0
    assert 0 <= taken - num_bytes < 512


def test_negative_size_is_refused() -> None:
    """A negative size is an error, not an allocation."""
    with pytest.raises(ValueError, match="-1 bytes"):
        allocated_bytes(-1)


@pytest.mark.parametrize("model", MODELS)
def test_first_stage_holds_the_published_gib(model: str) -> None:
    """The formula times the layers in flight gives the figures of Korthikanti et al. 2022, figure 1."""
    batch, hidden, heads, layers, stages, virtual_stages = MODELS[model]
    in_flight = 1 + (stages - 1) / (stages * virtual_stages) if virtual_stages > 1 else 1

    def gib(sequence_parallel: bool, selective: bool) -> float:
        per_layer = activation_bytes_per_layer(
            sequence_length=2048,
            microbatch_size=batch,
            hidden_size=hidden,
            num_heads=heads,
            tensor_degree=8,
            sequence_parallel=sequence_parallel,
            recompute="selective" if selective else "none",
        )
        return per_layer * layers * in_flight / GIB

    assert gib(sequence_parallel=False, selective=False) == pytest.approx(PUBLISHED[model][0], rel=1e-6)
    assert gib(sequence_parallel=True, selective=True) == pytest.approx(PUBLISHED[model][1], rel=1e-6)


sizes = st.integers(1, 64)


@given(shape=st.tuples(sizes, sizes, sizes, sizes, sizes), sequence_parallel=st.booleans())
def test_recomputing_more_keeps_less(shape: tuple[int, int, int, int, int], sequence_parallel: bool) -> None:
    """Full recomputation keeps less than selective, and selective less than none."""
    s, b, a, d, t = shape

    def kept(recompute: Any, parallel: bool) -> float:
        return activation_bytes_per_layer(
            sequence_length=s,
            microbatch_size=b,
            hidden_size=a * d,
            num_heads=a,
            tensor_degree=t,
            sequence_parallel=parallel,
            recompute=recompute,
        )

    none, selective, full = (kept(recompute, sequence_parallel) for recompute in ("none", "selective", "full"))
    assert full < selective < none
    assert kept("none", True) <= kept("none", False) * (1 + 1e-12)


def test_float32_logits_dominate_the_last_stage() -> None:
    """The extra of the last stage is 4sb(h + V)/t."""
    extra = logits_extra_bytes(
        sequence_length=2048, microbatch_size=4, hidden_size=6144, vocab_size=51200, tensor_degree=8
    )
    assert extra == pytest.approx(4 * 2048 * 4 * (6144 + 51200) / 8)
