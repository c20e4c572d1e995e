"""Self-attention: as separate kernels (scores, softmax, context) and fused (flash).

Queries are [s, b, n, d], keys and values [s, b, g, d] with g dividing n (grouped-query attention).
``flop`` counts the full square of scores, as the papers do (Narayanan et al. 2021; Korthikanti et al. 2022).
The separate kernels also execute the full square; the fused ones skip what the causal mask hides, about half,
and the fused backward computes the scores again: 5 products instead of 4 (Dao 2023, FlashAttention-2, section 3.1).
The fused softmax reads the lower triangle only and writes the whole square
(Megatron-LM, scaled_upper_triang_masked_softmax).
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
"""Maximum, subtraction, exponential, sum, division."""


def _check_heads(q: TensorSpec, k: TensorSpec) -> None:
    fits = len(q.shape) == len(k.shape) == 4 and q.shape[1] == k.shape[1] and q.shape[3] == k.shape[3]
    require(fits and q.shape[2] % k.shape[2] == 0, "q [s,b,n,d] and k [s,b,g,d] need equal b and d, g dividing n", q, k)


def _products(
    count: int, scores: TensorSpec, head_size: int, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Work:
    """Return the work of ``count`` batched products over the full square of scores [b, n, s, s]."""
    batch, heads, queries, keys = scores.shape
    flop = 2.0 * count * scores.num_elements * head_size
    shape = GemmShape(queries, keys, head_size, count * batch * heads)
    return Work(flop, flop, total_bytes(inputs), total_bytes(outputs), shape)


def _scores_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    q, k = inputs
    _check_heads(q, k)
    return (q.like(q.shape[1], q.shape[2], q.shape[0], k.shape[0]),)


def _scores_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    return _products(1, outputs[0], inputs[0].shape[3], inputs, outputs)


def _scores_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dscores, q, k = inputs
    _check_heads(q, k)
    expected = (q.shape[1], q.shape[2], q.shape[0], k.shape[0])
    require(dscores.shape == expected, f"dscores must be {list(expected)}", dscores, q, k)
    return (q, k)


def _scores_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    dscores, q, k = inputs
    batch, heads, queries, keys = dscores.shape
    flop = 4.0 * dscores.num_elements * q.shape[3]
    read = 2 * dscores.num_bytes + q.num_bytes + k.num_bytes
    shape = GemmShape(queries, q.shape[3], keys, 2 * batch * heads)
    return Work(flop, flop, read, total_bytes(outputs), shape)


def _same(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    require(all(tensor.shape == inputs[0].shape for tensor in inputs), "all inputs must have one shape", *inputs)
    return (inputs[0],)


def _softmax_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    executed = 0.5 * _SOFTMAX_FLOP_PER_SCORE * outputs[0].num_elements
    return Work(0.0, executed, total_bytes(inputs) // 2, total_bytes(outputs))


def _context_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    probs, v = inputs
    batch, heads, queries, keys = probs.shape
    fits = v.shape[:2] == (keys, batch) and heads % v.shape[2] == 0
    require(fits, "probs [b,n,s,s] and v [s,b,g,d] need equal s and b, g dividing n", probs, v)
    return (v.like(queries, batch, heads, v.shape[3]),)


def _context_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    probs, v = inputs
    batch, heads, queries, keys = probs.shape
    flop = 2.0 * probs.num_elements * v.shape[3]
    return Work(
        flop, flop, total_bytes(inputs), total_bytes(outputs), GemmShape(queries, v.shape[3], keys, batch * heads)
    )


def _context_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, probs, v = inputs
    batch, heads, queries, _keys = probs.shape
    require(dy.shape == (queries, batch, heads, v.shape[3]), "dy must be [s,b,n,d]", dy, probs, v)
    return (probs, v)


def _context_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    dy, probs, v = inputs
    work = _products(2, probs, v.shape[3], inputs, outputs)
    return Work(work.flop, work.flop, work.bytes_read + dy.num_bytes, work.bytes_written, work.gemm)


def _flash_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    q, k, v = inputs
    _check_heads(q, k)
    require(k.shape == v.shape, "k and v must have one shape", k, v)
    return (q, TensorSpec((q.shape[1], q.shape[2], q.shape[0]), statistics_dtype(q)))


def _flash_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    q, k = inputs[:2]
    scores = q.like(q.shape[1], q.shape[2], q.shape[0], k.shape[0])
    work = _products(2, scores, q.shape[3], inputs, outputs)
    shape = GemmShape(q.shape[0], k.shape[0], q.shape[3], q.shape[1] * q.shape[2])
    return Work(work.flop, work.flop / 2, work.bytes_read, work.bytes_written, shape)


def _flash_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, q, k, v, y, _lse = inputs
    _check_heads(q, k)
    require(
        dy.shape == q.shape == y.shape and k.shape == v.shape, "dy, q, y and k, v must each have one shape", *inputs
    )
    return (q, k, v)


def _flash_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    forward = _flash_work(inputs[1:4], outputs, attributes)
    return Work(2 * forward.flop, 2.5 * forward.executed_flop, total_bytes(inputs), total_bytes(outputs), forward.gemm)


ATTENTION_KERNELS = (
    Kernel("attention_scores", "gemm", (2, 2), _scores_outputs, _scores_work),
    Kernel("attention_scores_backward", "gemm", (3, 3), _scores_backward_outputs, _scores_backward_work),
    Kernel("causal_softmax", "elementwise", (1, 1), _same, _softmax_work),
    Kernel("causal_softmax_backward", "elementwise", (2, 2), _same, _softmax_work),
    Kernel("attention_context", "gemm", (2, 2), _context_outputs, _context_work),
    Kernel("attention_context_backward", "gemm", (3, 3), _context_backward_outputs, _context_backward_work),
    Kernel("flash_attention", "attention", (3, 3), _flash_outputs, _flash_work),
    Kernel("flash_attention_backward", "attention_backward", (6, 6), _flash_backward_outputs, _flash_backward_work),
)
