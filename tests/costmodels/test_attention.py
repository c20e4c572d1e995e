"""Attention on a part of the pairs: slices, shared sequences and sliding windows."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.kernels import Work
from tests.costmodels.test_kernel import B, D, G, N, f32, t, work_of


@given(cuts=st.lists(st.integers(1, 15), max_size=3, unique=True).map(sorted), fused=st.booleans())
def test_slices_of_attention_add_up_to_the_whole(cuts: list[int], fused: bool) -> None:
    """However 16 tokens are sliced, the counted FLOP are those of the square; executed are those that slices see."""
    total = 16
    cache, edges = t(total, B, G, D), [0, *cuts, total]
    flop = executed = 0.0
    for start, stop in pairwise(edges):
        q = t(stop - start, B, N, D)
        kernels = ["flash_attention"] if fused else ["attention_scores"]
        works = [work_of(k, [q, cache, cache] if fused else [q, cache], {"context": start}) for k in kernels]
        flop += sum(work.flop for work in works)
        executed += sum(work.executed_flop for work in works)
    whole = work_of("flash_attention", [t(total, B, N, D), cache, cache]) if fused else None
    square = whole or work_of("attention_scores", [t(total, B, N, D), cache])
    assert flop == square.flop
    seen = sum((stop - start) * stop for start, stop in pairwise(edges))
    assert executed == pytest.approx(square.executed_flop if fused else square.executed_flop * seen / total**2)


@given(cuts=st.lists(st.integers(1, 15), max_size=3, unique=True).map(sorted))
def test_blocks_below_the_diagonal_and_on_it_are_all_that_causal_attention_computes(cuts: list[int]) -> None:
    """However 16 tokens are cut, causal blocks of own keys and whole ones of earlier keys add up to the whole."""
    edges = [0, *cuts, 16]
    parts = [(t(b - a, B, N, D), t(b - a, B, G, D)) for a, b in pairwise(edges)]
    works = [work_of("flash_attention", [q, kv, kv]) for q, kv in parts]
    works += [
        work_of("flash_attention", [q, kv, kv], {"causal": False, "mirrored": True})
        for i, (q, _) in enumerate(parts)
        for _, kv in parts[:i]
    ]
    whole = work_of("flash_attention", [t(16, B, N, D), t(16, B, G, D), t(16, B, G, D)])
    assert sum(work.flop for work in works) == whole.flop
    assert sum(work.executed_flop for work in works) == pytest.approx(whole.executed_flop)


@given(degree=st.integers(2, 6), chunk=st.integers(1, 9), backward=st.booleans())
def test_shared_sequences_cost_what_their_ranks_chunks_do(degree: int, chunk: int, backward: bool) -> None:
    """A rank's two chunks cost the mean over ranks of a call per chunk; so do the steps of a ring together."""
    own, sequence = 2 * chunk, 2 * degree * chunk

    def attention(queries: int, keys: int, **attributes: Any) -> Work:
        q, kv, lse = t(queries, B, N, D), t(keys, B, G, D), f32(B, N, queries)
        sums = [kv, kv] if {"context", "dealt_over"} & attributes.keys() else []
        operands = [q, q, kv, kv, q, lse, *sums] if backward else [q, kv, kv]
        return work_of(f"flash_attention{'_backward' if backward else ''}", operands, attributes)

    chunks = [attention(chunk, sequence, context=number * chunk) for number in range(2 * degree)]
    ring = [attention(own, own), *(attention(own, own, causal=False, ring="cp", step=i) for i in range(1, degree))]
    dealt = attention(own, sequence, dealt_over="cp")
    for count in ("flop", "executed_flop"):
        each = sum(getattr(work, count) for work in chunks) / degree
        assert getattr(dealt, count) == pytest.approx(each)
        assert sum(getattr(work, count) for work in ring) == pytest.approx(each)


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9, 100])
def test_a_window_counts_the_keys_that_it_shows(window: int) -> None:
    """FLOP count ``window`` keys per query, at most all; fused kernels execute those that are causal."""
    s, heads, size = 512, 2, 16
    q, keys = t(s, 1, heads, size), window * 8
    attributes = {"window": keys}
    seen = sum(min(query + 1, keys) for query in range(s))
    flash, scores = work_of("flash_attention", [q] * 3, attributes), work_of("attention_scores", [q, q], attributes)
    assert flash.flop == 2 * scores.flop == 4.0 * heads * s * min(keys, s) * size
    assert flash.executed_flop == pytest.approx(4.0 * heads * size * seen, rel=1.0 / min(keys, s))
    assert flash.gemm is not None
    assert flash.gemm.window == min(keys, s)


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    """Its work is that of whole attention."""
    q = t(64, 1, 2, 16)
    windowed, whole = (work_of("flash_attention", [q] * 3, {"window": w} if w else {}) for w in (64, 0))
    assert (windowed.flop, windowed.executed_flop) == (whole.flop, whole.executed_flop)
