"""Products of ring self-attention: scores of all keys, made and used a block of keys at a time.

Li et al. 2021 (Sequence Parallelism, section 3.2). The scores [b, n, s, blocks * t] of a rank's s queries have a block
of t columns for every rank. In each of ``blocks`` steps a rank holds the keys or values [t, b, g, d] of one rank, and
reads or writes the columns of that block. The same products in other roles make the gradients. ``flop`` is what is
executed: nothing is skipped under a causal mask.
"""

from collections.abc import Sequence

from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


def _check(x: TensorSpec, held: TensorSpec) -> None:
    fits = len(x.shape) == len(held.shape) == 4 and x.shape[1] == held.shape[1] and x.shape[3] == held.shape[3]
    rule = "x [s,b,n,d] and keys [t,b,g,d] need equal b and d, g dividing n"
    require(fits and x.shape[2] % held.shape[2] == 0, rule, x, held)


def _scores_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, held, *given = inputs
    _check(x, held)
    scores = x.like(x.shape[1], x.shape[2], x.shape[0], attributes["blocks"] * held.shape[0])
    require(all(y.shape == scores.shape for y in given), f"scores must be {list(scores.shape)}", *inputs)
    return (scores,)


def _scores_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    x, held = inputs[:2]
    (s, b, n, d), t = x.shape, held.shape[0]
    block = outputs[0].like(b, n, s, t).num_bytes
    flop = 2.0 * b * n * s * t * d
    return Work(flop, flop, total_bytes((x, held)), block, GemmShape(s, t, d, b * n))


def _context_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    weights, held, *given = inputs
    b, n, s, keys = weights.shape
    y = held.like(s, b, n, held.shape[3])
    fits = held.shape[1] == b and n % held.shape[2] == 0 and keys == attributes["blocks"] * held.shape[0]
    require(fits, "weights [b,n,s,blocks*t] and values [t,b,g,e] need equal b and t, g dividing n", weights, held)
    require(all(x.shape == y.shape for x in given), f"the sum must be {list(y.shape)}", *inputs)
    return (y,)


def _context_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    weights, held, *given = inputs
    b, n, s, _keys = weights.shape
    t, e = held.shape[0], held.shape[3]
    flop = 2.0 * b * n * s * t * e
    read = weights.like(b, n, s, t).num_bytes + total_bytes((held, *given))
    return Work(flop, flop, read, total_bytes(outputs), GemmShape(s, e, t, b * n))


def _transposed_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    weights, x = inputs
    b, n, s, keys = weights.shape
    fits = x.shape[:3] == (s, b, n) and n % attributes["groups"] == 0
    require(fits, "weights [b,n,s,t] and x [s,b,n,d] need equal b, n and s, groups dividing n", weights, x)
    return (x.like(keys, b, attributes["groups"], x.shape[3]),)


def _transposed_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    weights, x = inputs
    b, n, s, keys = weights.shape
    flop = 2.0 * b * n * s * keys * x.shape[3]
    return Work(flop, flop, total_bytes(inputs), total_bytes(outputs), GemmShape(keys, x.shape[3], s, b * n))


RING_SCORE_KERNELS = (
    Kernel("ring_scores", "gemm", (2, 3), _scores_outputs, _scores_work),
    Kernel("ring_context", "gemm", (2, 3), _context_outputs, _context_work),
    Kernel("transposed_context", "gemm", (2, 2), _transposed_outputs, _transposed_work),
)
