"""Causal attention: as separate kernels, and fused over blocks of queries.

Queries are [s, b, n, d], keys [s, b, g, d], values [s, b, g, e]; kv head j serves query heads j*r .. j*r+r-1.

``context``: number of earlier tokens. Keys and values are then caches; the queries see ``context`` rows and one row per
query, their own rows last. If gradients of the caches are the last inputs, kernels add to them in place.
``dealt_over``: ranks share a sequence in two chunks each. Queries are this rank's chunks, keys the whole sequence.
``ring``: ranks share a sequence in two chunks each. Keys are the chunks of the rank ``step`` places before. If that
rank is earlier in the sequence, all queries see its first chunk. If it is later, the second chunk of queries sees both.
``window``: largest number of keys that a query sees: its own key and those before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction, wide

_QUERY_BLOCK: Final = 256
"""Queries per block of the fused kernels: memory grows with block x sequence, not with the square of the sequence."""


def query_groups(x: Tensor, keys: Tensor) -> Tensor:
    """Return x[s, b, n, d] as [b, g, r, s, d], grouped by the kv heads of keys[s, b, g, d]."""
    s, b, n, d = x.shape
    groups = keys.shape[2]
    return x.reshape(s, b, groups, n // groups, d).permute(1, 2, 3, 0, 4)


def merged_groups(x: Tensor) -> Tensor:
    """Return x[b, g, r, s, d] as [s, b, n, d]."""
    b, g, r, s, d = x.shape
    return x.permute(3, 0, 1, 2, 4).reshape(s, b, g * r, d).contiguous()


def kv_groups(x: Tensor) -> Tensor:
    """Return x[s, b, g, d] as [b, g, 1, s, d]."""
    return x.permute(1, 2, 0, 3).unsqueeze(2)


def summed_over_group(x: Tensor) -> Tensor:
    """Return x[b, g, r, s, d], summed over r, as [s, b, g, d]."""
    return x.sum(2).permute(2, 0, 1, 3).contiguous()


def score_groups(scores: Tensor, keys: Tensor) -> Tensor:
    """Return scores[b, n, s, t] as [b, g, r, s, t]."""
    b, n, s, t = scores.shape
    return scores.reshape(b, keys.shape[2], n // keys.shape[2], s, t)


def _seen(q: Tensor, kv: Tensor, attributes: Attributes) -> Tensor:
    """Return the rows of keys or values that the queries see."""
    return kv[: attributes["context"] + q.shape[0]] if "context" in attributes else kv


def _summed(gradients: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of the seen rows. If gradients of the caches are given, add to those and return them."""
    if not given:
        return tuple(gradients)
    for total, gradient in zip(given, gradients, strict=True):
        total[: gradient.shape[0]] += gradient
    return tuple(given)


def masked(scores: Tensor, window: int = 0, later: int = 0) -> Tensor:
    """Return scores[..., queries, keys] with minus infinity for hidden keys: those after the query.

    ``window``: keys before the query's window are hidden too; 0: there is no window.
    ``later``: number of keys after the key of the last query.
    """
    queries, keys = scores.shape[-2:]
    every = torch.ones((queries, keys), dtype=torch.bool, device=scores.device)
    keys -= later
    hidden = every.triu(1 + keys - queries)
    if window:
        hidden |= every.tril(keys - queries - window)
    return scores.masked_fill(hidden, -torch.inf)


def _window(attributes: Attributes) -> int:
    """Return the largest number of keys that a query sees; 0: no limit."""
    return int(attributes.get("window", 0))


def attention_scores(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return q k^T / sqrt(d) as [b, n, queries, keys]."""
    q, k = inputs
    scores = query_groups(q, k) @ kv_groups(_seen(q, k, attributes)).transpose(-1, -2)
    return (scores.flatten(1, 2) / sqrt(q.shape[-1]),)


def attention_scores_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of q and k."""
    dscores, q, k, *given = inputs
    grouped = score_groups(dscores, k) / sqrt(q.shape[-1])
    dk = summed_over_group(grouped.transpose(-1, -2) @ query_groups(q, k))
    return merged_groups(grouped @ kv_groups(_seen(q, k, attributes))), *_summed((dk,), given)


def causal_softmax(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the softmax over the keys that a query sees: up to its own key, within its window. Other keys get 0.

    ``cut_over``: mesh axes that split the queries of a sequence, in order.
    """
    (scores,) = inputs
    if not _is_causal(attributes):
        return (wide(scores).softmax(-1).to(scores.dtype),)
    axes, queries = attributes.get("cut_over", ()), scores.shape[-2]
    later = (context.rank.mesh.degree(*axes) - 1 - context.index(axes)) * queries if axes else 0
    return (masked(wide(scores), _window(attributes), later).softmax(-1).to(scores.dtype),)


def causal_softmax_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return p (dp - sum(p dp))."""
    dprobs, probs = inputs
    dp, p = wide(dprobs), wide(probs)
    return ((p * (dp - (p * dp).sum(-1, keepdim=True))).to(probs.dtype),)


def attention_context(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return probs v as [s, b, n, d]."""
    probs, v = inputs
    return (merged_groups(score_groups(probs, v) @ kv_groups(v[: probs.shape[-1]])),)


def attention_context_backward(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return the gradients of probs and v."""
    dy, probs, v, *given = inputs
    grouped = query_groups(dy, v)
    dprobs = (grouped @ kv_groups(v[: probs.shape[-1]]).transpose(-1, -2)).flatten(1, 2)
    return dprobs, *_summed((summed_over_group(score_groups(probs, v).transpose(-1, -2) @ grouped),), given)


def flash_attention(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return causal attention and the log-sum-exp of its scores, computed block by block of queries."""
    q, k, v = inputs
    queries, keys, values = query_groups(q, k), kv_groups(k), kv_groups(v)
    b, groups, heads, s, _ = queries.shape
    y = values.new_zeros((b, groups, heads, s, v.shape[3]))
    sums = wide(values).new_full((b, groups, heads, s), -torch.inf)
    for rows, seen in _blocks(context, q, k, attributes):
        scores = _block_scores(queries[..., rows, :], keys[..., seen, :], attributes)
        lse = scores.logsumexp(-1)
        probs = torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype)
        y[..., rows, :], sums[..., rows] = probs @ values[..., seen, :], lse
    return merged_groups(y), sums.flatten(1, 2)


def flash_attention_backward(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v; the scores are recomputed (Dao 2023, FlashAttention-2, algorithm 2)."""
    dy, q, k, v, y, lse, *given = inputs
    queries, keys, values, grouped = query_groups(q, k), kv_groups(k), kv_groups(v), query_groups(dy, v)
    row_sums = (wide(dy) * wide(y)).sum(-1).permute(1, 2, 0)
    b, n, s = row_sums.shape
    row_sums, lse = (x.reshape(b, k.shape[2], n // k.shape[2], s, 1) for x in (row_sums, lse))
    dq = torch.zeros_like(queries)
    shape = (*queries.shape[:3], _seen(q, k, attributes).shape[0])
    dk, dv = (torch.zeros((*shape, x.shape[4]), dtype=wide(x).dtype, device=x.device) for x in (keys, values))
    for block, seen in _blocks(context, q, k, attributes):
        rows = (..., block, slice(None))
        probs = torch.exp(_block_scores(queries[rows], keys[..., seen, :], attributes) - lse[rows])
        dprobs = wide(grouped[rows] @ values[..., seen, :].transpose(-1, -2))
        dscores = (probs * (dprobs - row_sums[rows]) / sqrt(q.shape[-1])).to(q.dtype)
        dv[..., seen, :] += probs.to(dy.dtype).transpose(-1, -2) @ grouped[rows]
        dk[..., seen, :] += dscores.transpose(-1, -2) @ queries[rows]
        dq[rows] = dscores @ keys[..., seen, :]
    return merged_groups(dq), *_summed((summed_over_group(dk).to(k.dtype), summed_over_group(dv).to(v.dtype)), given)


def _blocks(context: KernelContext, q: Tensor, k: Tensor, attributes: Attributes) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of queries, each with the range of keys that its queries see."""
    window = _window(attributes)
    for first, last, keys in _runs(context, q.shape[0], _seen(q, k, attributes).shape[0], attributes):
        for start in range(first, last, _QUERY_BLOCK):
            stop = min(start + _QUERY_BLOCK, last)
            end = keys - last + stop if _is_causal(attributes) else keys
            begin = max(0, end - (stop - start) - window + 1) if window else 0
            yield slice(start, stop), slice(begin, end)


def _runs(context: KernelContext, queries: int, keys: int, attributes: Attributes) -> list[tuple[int, int, int]]:
    """Return runs of consecutive queries: start, stop, and the number of keys that the last query of the run sees."""
    chunk = queries // 2
    if "dealt_over" in attributes:
        one, other = context.dealt_chunks(attributes["dealt_over"])
        return [(0, chunk, (one + 1) * chunk), (chunk, queries, (other + 1) * chunk)]
    if "ring" in attributes:
        is_of_later = attributes["step"] > context.index((attributes["ring"],))
        return [(chunk, queries, keys)] if is_of_later else [(0, queries, chunk)]
    return [(0, queries, keys)]


def _is_causal(attributes: Attributes) -> bool:
    """Return whether a query sees only the keys up to its own; otherwise it sees all keys."""
    return bool(attributes.get("causal", True))


def _block_scores(queries: Tensor, keys: Tensor, attributes: Attributes) -> Tensor:
    """Return the scores of queries and keys; with a causal mask, hidden keys get minus infinity."""
    scores = wide(queries @ keys.transpose(-1, -2)) / sqrt(queries.shape[-1])
    return masked(scores, _window(attributes)) if _is_causal(attributes) else scores


def merge_attention(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Merge an attention result over other keys into a result and its log-sum-exp, in place; return these two.

    The weight of each result is its fraction of the sum of exponentials (Rabe and Staats 2021; Liu et al. 2023, Ring
    Attention).
    """
    part, part_lse, y, lse = inputs
    total = torch.logaddexp(lse, part_lse)
    kept, added = (torch.exp(x - total).permute(2, 0, 1).unsqueeze(-1) for x in (lse, part_lse))
    y.copy_(wide(y) * kept + wide(part) * added)
    lse.copy_(total)
    return y, lse


ATTENTION_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "attention_scores": attention_scores,
        "attention_scores_backward": attention_scores_backward,
        "causal_softmax": causal_softmax,
        "causal_softmax_backward": causal_softmax_backward,
        "attention_context": attention_context,
        "attention_context_backward": attention_context_backward,
        "flash_attention": flash_attention,
        "merge_attention": merge_attention,
        "flash_attention_backward": flash_attention_backward,
    }
)
