"""The work of attention to caches of several sequences."""

from typing import Any

import pytest

from costmodels.errors import KernelError
from costmodels.kernels import GemmShape, TensorSpec
from tests.costmodels.test_kernel import SCALED, SPANS, N, S, f32, t, work_of


def test_decoding_reads_every_key_and_value_once() -> None:
    """p new tokens per sequence cost 4bpnsd FLOP, and the bytes of queries, keys, values and results."""
    s, b, p, g, r, d = 1000, 3, 2, 2, 4, 16
    cache, spans = t(b * s, 1, g, d), tuple((i * s, s, p) for i in range(b))
    work = work_of("decode_attention", [t(b * p, 1, g * r, d), cache, cache], {"spans": spans})
    assert work.flop == work.executed_flop == 4.0 * b * p * g * r * s * d
    assert work.num_bytes == 2 * (2 * b * p * g * r * d + 2 * s * b * g * d)
    assert work.gemm == GemmShape(r * p, s, d, b * g)


def test_prompts_in_a_cache_cost_what_fused_attention_costs() -> None:
    """Prompts of equal lengths, one after the other, are the work of one batch of them, statistics apart."""
    s, b, g, r, d = 256, 3, 2, 4, 16
    cache, spans = t(b * s, 1, g, d), tuple((i * s, s, s) for i in range(b))
    flat = work_of("cached_attention", [t(b * s, 1, g * r, d), cache, cache], {"spans": spans})
    batch = work_of("flash_attention", [t(s, b, g * r, d), t(s, b, g, d), t(s, b, g, d)])
    assert (flat.flop, flat.executed_flop, flat.gemm) == (batch.flop, batch.executed_flop, batch.gemm)
    assert flat.bytes_read == batch.bytes_read
    assert flat.bytes_written == batch.bytes_written - 4 * b * g * r * s


def test_a_cache_of_latents_serves_all_heads() -> None:
    """Of n heads of width r+p, whose values are the first r channels, a key is read once: 2n(2r+p) FLOP per token."""
    n, r, p, slots = 8, 16, 4, 40
    attributes = {"spans": ((0, 30, 1),), "value_size": r}
    work = work_of("decode_attention", [t(1, 1, n, r + p), t(slots, 1, r + p)], attributes)
    assert work.flop == 2.0 * n * (2 * r + p) * 30
    assert work.bytes_read == 2 * (n * (r + p) + 30 * (r + p))
    assert work.gemm == GemmShape(n, 30, r + p, 1)


def test_deepseeks_latents_in_eight_bits_have_656_bytes() -> None:
    """A token is written and read as 512 numbers, 4 scales and 64 positions in 16 bits; the FLOP are as before."""
    n, r, p, slots, spans = 128, 512, 64, 40, ((0, 30, 1),)
    caches = (TensorSpec((slots, 1, r), "float8_e4m3fn"), TensorSpec((slots, 1, 4), "float32"), t(slots, 1, p))
    written = work_of("append_latents", [t(3, 1, r), t(3, 1, 1, p)], {"places": ((0, 3),), "rows": slots})
    assert written.bytes_written == 3 * 656
    work = work_of("decode_latents", [t(1, 1, n, r + p), *caches], {"spans": spans})
    assert work.bytes_read == 2 * n * (r + p) + 30 * 656
    whole = work_of("decode_attention", [t(1, 1, n, r + p), t(slots, 1, r + p)], {"spans": spans, "value_size": r})
    assert (work.flop, work.executed_flop, work.gemm) == (whole.flop, whole.executed_flop, whole.gemm)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("append_latents", [t(3, 1, 130), t(3, 1, 1, 4)], {"places": ((6, 3),), "rows": S}),
        ("append_latents", [t(3, 1, 130), t(3, 1, 1, 5), *SCALED], {"places": ((0, 3),), "rows": S}),
        ("decode_latents", [t(3, 1, N, 133), *SCALED], {"spans": SPANS}),
        ("decode_latents", [t(3, 1, N, 134), SCALED[0], f32(S, 1, 1), SCALED[2]], {"spans": SPANS}),
    ],
)
def test_caches_of_latents_fit_each_other(name: str, inputs: list[TensorSpec], attributes: dict[str, Any]) -> None:
    """Rows beyond the caches, other widths and a scale too few are refused."""
    with pytest.raises(KernelError, match="got shapes"):
        work_of(name, inputs, attributes)


def test_absorbed_projections_read_their_part_of_the_weight() -> None:
    """A product per head: 2 d r FLOP to absorb a query, 2 r e to expand a value, and that part of w[r, n, d+e]."""
    s, n, d, p, r, e = 3, 4, 6, 2, 10, 5
    weight, attributes = t(r, n, d + e), {"head_size": d}
    absorbed = work_of("absorb_query", [t(s, 1, n, d + p), weight], attributes)
    expanded = work_of("expand_values", [t(s, 1, n, r), weight], attributes)
    assert (absorbed.flop, expanded.flop) == (2.0 * s * n * d * r, 2.0 * s * n * r * e)
    assert absorbed.bytes_read == 2 * (s * n * (d + p) + r * n * d)
    assert expanded.bytes_read == 2 * (s * n * r + r * n * e)
    assert absorbed.bytes_written == 2 * s * n * (r + p)
