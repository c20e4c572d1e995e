"""Attention of some tokens of several sequences to caches of keys and values.

Queries are [s, 1, n, d], the tokens of one sequence after those of another. Caches are [slots, 1, g, d] for keys and
[slots, 1, g, e] for values; [slots, 1, d] is a cache of one head for all. ``spans``: per sequence the slot of its first
key, the number of keys, and the number of queries, which are the last of these keys. A query sees the keys up to its
own. Without a cache of values the first ``value_size`` channels of a key are its value.

``cached_attention`` is for prompts: blocks of queries against the keys before them. ``decode_attention`` is for few
queries per sequence: every key and value is read once.
"""

from collections.abc import Sequence

from msgspec import Struct

from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


class _Totals(Struct, frozen=True):
    """Sums over the spans: sequences, queries, keys, scores, and the scores that the causal mask leaves."""

    sequences: int
    queries: int
    keys: int
    scores: int
    seen: float


def _totals(attributes: Attributes) -> _Totals:
    spans = attributes["spans"]
    return _Totals(
        sequences=len(spans),
        queries=sum(queries for _, _, queries in spans),
        keys=sum(keys for _, keys, _ in spans),
        scores=sum(keys * queries for _, keys, queries in spans),
        seen=sum(queries * (keys - queries / 2) for _, keys, queries in spans),
    )


def _value_size(inputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return inputs[2].shape[3] if len(inputs) == 3 else int(attributes["value_size"])


def _with_heads(cache: TensorSpec) -> TensorSpec:
    """Return a cache as [slots, 1, g, d]."""
    return cache if len(cache.shape) == 4 else cache.like(*cache.shape[:2], 1, *cache.shape[2:])


def _outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    q, *v = inputs
    k, *v = map(_with_heads, v)
    fits = len(q.shape) == len(k.shape) == 4 and q.shape[1] == k.shape[1] == 1 and q.shape[3] == k.shape[3]
    require(fits and q.shape[2] % k.shape[2] == 0, "q [s,1,n,d] and k [slots,1,g,d] need equal d, g dividing n", q, k)
    require(
        all(k.shape[:3] == values.shape[:3] for values in v), "k and v must have one shape, head sizes apart", k, *v
    )
    spans = attributes["spans"]
    inside = all(first >= 0 and 0 < queries <= keys <= k.shape[0] - first for first, keys, queries in spans)
    require(inside and _totals(attributes).queries == q.shape[0], f"{spans} must name all queries and slots", q, k)
    return (q.like(*q.shape[:3], _value_size(inputs, attributes)),)


def _read_bytes(inputs: Sequence[TensorSpec], keys: int) -> int:
    """Return the bytes of the queries and of as many rows of the caches."""
    q, *caches = inputs
    return q.num_bytes + total_bytes([x.like(keys, *x.shape[1:]) for x in caches])


def _prompt_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of fused attention over prompts; sequences of unequal lengths count as so many of the mean."""
    (q, *_), of = inputs, _totals(attributes)
    widths = q.shape[3] + _value_size(inputs, attributes)
    per_score = 2.0 * q.shape[2] * widths
    shape = GemmShape(
        -(-of.queries // of.sequences), -(-of.keys // of.sequences), round(widths / 2), q.shape[2] * of.sequences
    )
    return Work(per_score * of.scores, per_score * of.seen, _read_bytes(inputs, of.keys), total_bytes(outputs), shape)


def _decode_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of few queries per sequence. Heads of one key head and all its queries share each read key."""
    q, k, of = inputs[0], _with_heads(inputs[1]), _totals(attributes)
    flop = 2.0 * q.shape[2] * (q.shape[3] + _value_size(inputs, attributes)) * of.scores
    rows = q.shape[2] // k.shape[2] * -(-of.queries // of.sequences)
    shape = GemmShape(rows, -(-of.keys // of.sequences), q.shape[3], k.shape[2] * of.sequences)
    return Work(flop, flop, _read_bytes(inputs, of.keys), total_bytes(outputs), shape)


DECODE_ATTENTION = Kernel("decode_attention", "decode", (2, 3), _outputs, _decode_work)
CACHED_ATTENTION_KERNELS = (
    Kernel("cached_attention", "attention", (2, 3), _outputs, _prompt_work),
    DECODE_ATTENTION,
)
