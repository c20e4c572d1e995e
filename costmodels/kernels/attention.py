"""Self-attention: as separate kernels (scores, softmax, context) and fused (flash).

Queries are [s, b, n, d], keys [s, b, g, d] and values [s, b, g, e] with g dividing n (grouped-query attention). Usually
e is d (not in DeepSeek-AI 2024, DeepSeek-V2, section 2.1). ``flop`` counts the full square of scores, as the papers do
(Narayanan et al. 2021; Korthikanti et al. 2022). The separate kernels also execute the full square. The fused ones skip
the scores hidden by the causal mask, about half, and the fused backward computes the scores again: 5 products instead
of 4 (Dao 2023, FlashAttention-2, section 3.1). The fused softmax reads only the lower triangle and writes the whole
square (Megatron-LM, scaled_upper_triang_masked_softmax). With ``cut_over`` ranks split its rows, and each is priced as
their mean.

A slice of a sequence: ``context`` tokens come before the queries, and keys and values are the first rows of caches for
the whole sequence. Scores are then [b, n, s, context + s], which the separate kernels execute. ``flop`` counts all rows
of the caches, so the FLOP of a sequence's slices always add up to those of the full square.

Context parallelism, with two chunks per rank: queries are the rank's own. With ``dealt_over``, keys are the whole
sequence. With ``ring``, keys are another rank's, and half of the scores are visible, as a whole block (``causal``
false); ``flop`` also counts the mirror image of that block, which no rank computes. The visible scores depend on the
rank; their number does not. A ring step is priced with the keys of an earlier rank in the sequence: all queries see one
chunk. With the keys of a later rank the second chunk of queries sees both chunks: as many scores, and fewer bytes of
queries. With ``mirrored`` all queries see all keys of an earlier rank's block; ``flop`` also counts the mirror image.

With ``window``, a query sees at most that many keys, its own and those before it (Beltagy et al. 2020, Longformer;
Jiang et al. 2023, Mistral 7B). ``flop`` then counts that many keys per query, and fused kernels execute no others; the
separate kernels still execute the full square.

If gradients of the caches are the last inputs, the kernel adds to them in place; otherwise the slice must reach the
caches' end.
"""

from collections.abc import Sequence

from costmodels.kernels.tensor import (
    Attributes,
    GemmShape,
    Kernel,
    TensorSpec,
    Work,
    require,
    statistics_dtype,
    total_bytes,
)

_SOFTMAX_FLOP_PER_SCORE = 5
"""Maximum, subtraction, exponential, sum and division."""


def _check_heads(q: TensorSpec, k: TensorSpec) -> None:
    fits = len(q.shape) == len(k.shape) == 4 and q.shape[1] == k.shape[1] and q.shape[3] == k.shape[3]
    require(fits and q.shape[2] % k.shape[2] == 0, "q [s,b,n,d] and k [s,b,g,d] need equal b and d, g dividing n", q, k)


def _num_keys(q: TensorSpec, k: TensorSpec, attributes: Attributes) -> int:
    """Return the number of rows of k that the queries see: all, or in a cache those of the context and their own."""
    if "context" not in attributes:
        return k.shape[0]
    keys = int(attributes["context"]) + q.shape[0]
    require(keys <= k.shape[0], f"the cache must have {keys} rows", q, k)
    return keys


def _seen(kv: TensorSpec, keys: int) -> TensorSpec:
    """Return the rows of keys or values that a kernel reads."""
    return kv.like(keys, *kv.shape[1:])


def _causal_fraction(queries: int, keys: int, window: int = 0) -> float:
    """Return the fraction of scores left by the causal mask and the window, in the limit of many queries."""
    hidden = keys - min(window or keys, keys)
    return 1.0 - 0.5 * queries / keys - 0.5 * hidden**2 / (queries * keys)


def _window(attributes: Attributes) -> int:
    """Return the largest number of keys that a query sees; 0: all up to its own."""
    return int(attributes.get("window", 0))


def _counted_keys(kv: TensorSpec, attributes: Attributes) -> int:
    """Return the number of keys per query in the papers' FLOP: all rows, or those of a window."""
    return min(kv.shape[0], _window(attributes) or kv.shape[0])


def _gradients(kv: Sequence[TensorSpec], given: Sequence[TensorSpec], keys: int) -> tuple[TensorSpec, ...]:
    """Return the gradients of keys and values: new ones, or the given ones, to which the kernel adds."""
    if given:
        require([g.shape for g in given] == [x.shape for x in kv], "gradients must be like the caches", *given, *kv)
        return tuple(given)
    require(all(x.shape[0] == keys for x in kv), "new gradients need a slice that reaches the caches' end", *kv)
    return tuple(kv)


def _products(
    count: int,
    scores: TensorSpec,
    head_size: int,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    num_rows: int,
) -> Work:
    """Return the work of ``count`` batched products over all scores [b, n, s, t], of ``num_rows`` keys in all."""
    batch, heads, queries, keys = scores.shape
    per_key = 2.0 * count * batch * heads * queries * head_size
    shape = GemmShape(queries, keys, head_size, count * batch * heads)
    return Work(per_key * num_rows, per_key * keys, total_bytes(inputs), total_bytes(outputs), shape)


def _scores_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    q, k = inputs
    _check_heads(q, k)
    return (q.like(q.shape[1], q.shape[2], q.shape[0], _num_keys(q, k, attributes)),)


def _scores_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    q, k = inputs
    read, counted = (q, _seen(k, outputs[0].shape[3])), _counted_keys(k, attributes)
    return _products(1, outputs[0], q.shape[3], read, outputs, counted)


def _scores_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dscores, q, k, *given = inputs
    _check_heads(q, k)
    keys = _num_keys(q, k, attributes)
    expected = (q.shape[1], q.shape[2], q.shape[0], keys)
    require(dscores.shape == expected, f"dscores must be {list(expected)}", dscores, q, k)
    return (q, *_gradients((k,), given, keys))


def _scores_backward_work(inputs: Sequence[TensorSpec], _: Sequence[TensorSpec], attributes: Attributes) -> Work:
    dscores, q, k, *given = inputs
    batch, heads, queries, keys = dscores.shape
    per_key, seen = 4.0 * batch * heads * queries * q.shape[3], _seen(k, keys).num_bytes
    read = 2 * dscores.num_bytes + q.num_bytes + (1 + len(given)) * seen
    shape = GemmShape(queries, q.shape[3], keys, 2 * batch * heads)
    return Work(per_key * _counted_keys(k, attributes), per_key * keys, read, q.num_bytes + seen, shape)


def _same(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    require(all(tensor.shape == inputs[0].shape for tensor in inputs), "all inputs must have one shape", *inputs)
    return (inputs[0],)


def _softmax_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    queries, keys = outputs[0].shape[2:]
    part = 0.5 if "cut_over" in attributes else _causal_fraction(queries, keys, _window(attributes))
    part = part if _is_causal(attributes) else 1.0
    executed = part * _SOFTMAX_FLOP_PER_SCORE * outputs[0].num_elements
    return Work(0.0, executed, int(part * total_bytes(inputs)), total_bytes(outputs))


def _context_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    probs, v = inputs
    batch, heads, queries, keys = probs.shape
    y = v.like(queries, batch, heads, v.shape[3])
    fits = v.shape[1] == batch and keys == _num_keys(y, v, attributes) and heads % v.shape[2] == 0
    require(fits, "probs [b,n,s,s] and v [s,b,g,d] need equal s and b, g dividing n", probs, v)
    return (y,)


def _context_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    probs, v = inputs
    batch, heads, queries, keys = probs.shape
    per_key = 2.0 * batch * heads * queries * v.shape[3]
    read, shape = total_bytes((probs, _seen(v, keys))), GemmShape(queries, v.shape[3], keys, batch * heads)
    return Work(per_key * _counted_keys(v, attributes), per_key * keys, read, total_bytes(outputs), shape)


def _context_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, probs, v, *given = inputs
    batch, heads, queries, keys = probs.shape
    require(dy.shape == (queries, batch, heads, v.shape[3]), "dy must be [s,b,n,d]", dy, probs, v)
    require(keys == _num_keys(dy, v, attributes), "probs must have a column per key", probs, v)
    return (probs, *_gradients((v,), given, keys))


def _context_backward_work(inputs: Sequence[TensorSpec], _: Sequence[TensorSpec], attributes: Attributes) -> Work:
    dy, probs, v, *given = inputs
    seen = _seen(v, probs.shape[3])
    reads = (dy, dy, probs, *[seen] * (1 + len(given)))
    return _products(2, probs, v.shape[3], reads, (probs, seen), _counted_keys(v, attributes))


def _fused_keys(q: TensorSpec, k: TensorSpec, attributes: Attributes) -> int:
    """Return the number of rows of k that the last query sees; for a rank's two chunks, the mean over both."""
    if "ring" in attributes:
        require(k.shape[0] == q.shape[0] and not k.shape[0] % 2, "ranks must have two chunks each", q, k)
        return k.shape[0] // 2
    if "dealt_over" in attributes:
        require(not q.shape[0] % 2 and not k.shape[0] % q.shape[0], "keys must be those of whole ranks", q, k)
        return (k.shape[0] + q.shape[0]) // 2
    return _num_keys(q, k, attributes)


def _touched(kv: TensorSpec, keys: int, attributes: Attributes) -> TensorSpec:
    """Return the rows of keys or values that a fused kernel reads: for two chunks all, to the end of the second."""
    return kv if "dealt_over" in attributes else _seen(kv, keys)


def _check_fused(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    _check_heads(q, k)
    require(k.shape[:3] == v.shape[:3], "k and v must have one shape, head sizes apart", k, v)


def _flash_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    q, k, v = inputs
    _check_fused(q, k, v)
    _fused_keys(q, k, attributes)
    return (q.like(*q.shape[:3], v.shape[3]), TensorSpec((q.shape[1], q.shape[2], q.shape[0]), statistics_dtype(q)))


def _is_causal(attributes: Attributes) -> bool:
    """Return whether queries see only the keys up to their own."""
    return bool(attributes.get("causal", True))


def _fused_shape(q: TensorSpec, keys: int, widths: Sequence[int], attributes: Attributes) -> GemmShape:
    """Return the shape of fused products whose factors have these widths; the head size is the rounded mean."""
    head_size = round(sum(widths) / len(widths))
    window = min(_window(attributes), keys)
    return GemmShape(q.shape[0], keys, head_size, q.shape[1] * q.shape[2], _is_causal(attributes), window)


def _flash_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    q, k, v = inputs
    keys, widths = _fused_keys(q, k, attributes), (q.shape[3], v.shape[3])
    scores = q.like(q.shape[1], q.shape[2], q.shape[0], keys)
    causal = _is_causal(attributes)
    mirrored = "ring" in attributes or "mirrored" in attributes
    rows, read = 2 * keys if mirrored else _counted_keys(k, attributes), [_touched(x, keys, attributes) for x in (k, v)]
    work = _products(1, scores, sum(widths), (q, *read), outputs, rows)
    executed = work.executed_flop * (_causal_fraction(q.shape[0], keys, _window(attributes)) if causal else 1.0)
    return Work(work.flop, executed, work.bytes_read, work.bytes_written, _fused_shape(q, keys, widths, attributes))


def _flash_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, q, k, v, y, _lse, *given = inputs
    _check_fused(q, k, v)
    fits = dy.shape == y.shape == (*q.shape[:3], v.shape[3])
    require(fits, "dy and y must be as many as q, each as wide as v", *inputs)
    keys = _fused_keys(q, k, attributes)
    return (q, *_gradients((k, v), given, k.shape[0] if "ring" in attributes else keys))


def _flash_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    dy, q, k, v, y, lse, *given = inputs
    forward, keys = _flash_work((q, k, v), (y, lse), attributes), _fused_keys(q, k, attributes)
    query, value = q.shape[3], v.shape[3]
    widths = (query, value, value, query, query)  # scores again; gradients of probabilities, values, queries and keys
    executed = forward.executed_flop * sum(widths) / (query + value)
    seen = total_bytes([_touched(x, keys, attributes) for x in (k, v)])
    read = total_bytes((dy, q, y, lse)) + (2 if given else 1) * seen
    written = q.num_bytes + (total_bytes((k, v)) if "ring" in attributes else seen)
    return Work(2 * forward.flop, executed, read, written, _fused_shape(q, keys, widths, attributes))


def _merge_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return y and its log-sum-exp, into which a result over other keys is merged."""
    part, part_lse, y, lse = inputs
    require(part.shape == y.shape, "both results must have one shape", part, y)
    fits = part_lse.shape == lse.shape == (*y.shape[1:3], y.shape[0])
    require(fits, "a result [s,b,n,d] needs its log-sum-exp [b,n,s]", *inputs)
    return (y, lse)


def _merge_work(inputs: Sequence[TensorSpec], _: Sequence[TensorSpec], _attributes: Attributes) -> Work:
    """Return the work of scaling and adding up two results."""
    part, part_lse, *_whole = inputs
    touched = total_bytes((part, part_lse))
    return Work(0.0, 3.0 * part.num_elements + 6.0 * part_lse.num_elements, 2 * touched, touched)


ATTENTION_KERNELS = (
    Kernel("attention_scores", "gemm", (2, 2), _scores_outputs, _scores_work),
    Kernel("attention_scores_backward", "gemm", (3, 4), _scores_backward_outputs, _scores_backward_work),
    Kernel("causal_softmax", "elementwise", (1, 1), _same, _softmax_work),
    Kernel("causal_softmax_backward", "elementwise", (2, 2), _same, _softmax_work),
    Kernel("attention_context", "gemm", (2, 2), _context_outputs, _context_work),
    Kernel("attention_context_backward", "gemm", (3, 4), _context_backward_outputs, _context_backward_work),
    Kernel("flash_attention", "attention", (3, 3), _flash_outputs, _flash_work),
    Kernel("merge_attention", "elementwise", (4, 4), _merge_outputs, _merge_work),
    Kernel("flash_attention_backward", "attention_backward", (6, 8), _flash_backward_outputs, _flash_backward_work),
)
