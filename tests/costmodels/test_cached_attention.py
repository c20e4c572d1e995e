"""The work of attention to caches of several sequences."""

from costmodels.kernels import GemmShape
from tests.costmodels.test_kernel import t, work_of


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
