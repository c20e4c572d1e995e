"""Kernels of context parallelism: sums of rows, chunks in another order, attention merged over blocks of keys."""

import torch

from tests.backends.test_kernels import D, G, N, assert_close, attention, gradients, random, run


def test_rows_are_added_to_a_sum_in_place_or_to_zeros() -> None:
    """New sums are zero beside the rows that were added; given ones are added to."""
    x = random(2, 2, G, D)
    (total,) = run("add_rows", x, start=1, rows=4)
    (again,) = run("add_rows", x, total, start=2, rows=4)
    assert again is total
    zero = torch.zeros_like(x[:1])
    assert_close([total], [torch.cat([zero, x, zero]) + torch.cat([zero, zero, x])])


def test_attention_merged_over_blocks_of_keys_is_attention() -> None:
    """Own keys, causal, then those of earlier tokens, all seen: merged by log-sum-exp, and their gradients added."""
    q, k, v, dy = (random(6, 2, heads, D, seed=i) for i, heads in enumerate((N, G, G, N)))
    expected = [attention(q, k, v), *gradients(attention, (q, k, v), dy)]
    first, last = slice(0, 2), slice(2, 6)
    y, lse = run("flash_attention", q[first].contiguous(), k[first], v[first])
    y_last, lse_last = run("flash_attention", q[last].contiguous(), k[last].contiguous(), v[last].contiguous())
    y, lse = torch.cat([y, y_last]), torch.cat([lse, lse_last], 2)
    earlier = (q[last].contiguous(), k[first].contiguous(), v[first].contiguous())
    merged, sums = run("merge_attention", *run("flash_attention", *earlier, causal=False), y, lse, start=2)
    assert merged is y
    assert sums is lse
    parts = [
        ((first, first), run("flash_attention_backward", *(x[first] for x in (dy, q, k, v, y)), lse[..., first])),
        ((last, last), run("flash_attention_backward", *(x[last] for x in (dy, q, k, v, y)), lse[..., last])),
        ((last, first), run(
            "flash_attention_backward", dy[last], *earlier, y[last], lse[..., last], causal=False
        )),
    ]  # fmt: skip
    totals = [torch.zeros_like(x) for x in (q, k, v)]
    for (queries, keys), (dq, dk, dv) in parts:
        for total, rows, part in zip(totals, (queries, keys, keys), (dq, dk, dv), strict=True):
            total[rows] += part
    assert_close([y, *totals], expected)


def test_take_chunks_changes_the_order_of_rows() -> None:
    """Chunks of two rows each, the last one first."""
    x = random(6, 2, G, D)
    assert_close(run("take_chunks", x, order=(2, 0, 1)), [torch.cat([x[4:], x[:4]])])
