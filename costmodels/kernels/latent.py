"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): between its projections and its scores.

Changes of shape, bound by memory bandwidth. As Megatron-LM without fused rotary positions: whole keys are written.

Where latents are cached, queries and results are brought to their width (section 2.1.2: the projection up is absorbed
by those of queries and outputs), with the projection's two parts, w[r, n, d+e].
"""

from collections.abc import Sequence

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require


def _split_latent_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the first ``kv_rank`` channels of x[s, b, r+p], and the others as one head's [s, b, 1, p]."""
    (x,) = inputs
    rank = attributes["kv_rank"]
    require(len(x.shape) == 3 and 0 < rank < x.shape[2], f"x must be [s,b,r+p] with r = {rank}", x)
    return (x.like(*x.shape[:2], rank), x.like(*x.shape[:2], 1, x.shape[2] - rank))


def _merge_latent_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    latent, position = inputs
    fits = position.shape[:-1] == (*latent.shape[:-1], 1)
    require(fits, "the latent must be [s,b,r], the positions' channels [s,b,1,p]", *inputs)
    return (latent.like(*latent.shape[:-1], latent.shape[-1] + position.shape[-1]),)


def _latent_heads_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return k[s, b, n, d+p] and v[s, b, n, e] of kv[s, b, n, d+e] and a position part [s, b, 1, p] for all heads."""
    kv, position = inputs
    size = attributes["head_size"]
    fits = position.shape[:-1] == (*kv.shape[:2], 1) and 0 < size < kv.shape[3]
    require(fits, f"kv must be [s,b,n,d+e] with d = {size}, the positions' channels [s,b,1,p]", *inputs)
    shape = kv.shape[:3]
    return (kv.like(*shape, size + position.shape[3]), kv.like(*shape, kv.shape[3] - size))


def _latent_heads_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradients of kv[s, b, n, d+e] and, summed over heads, of the position part [s, b, 1, p]."""
    dk, dv = inputs
    size = attributes["head_size"]
    fits = dk.shape[:3] == dv.shape[:3] and 0 < size < dk.shape[3]
    require(fits, f"dk must be [s,b,n,d+p] with d = {size}, dv [s,b,n,e]", *inputs)
    return (dk.like(*dk.shape[:3], size + dv.shape[3]), dk.like(*dk.shape[:2], 1, dk.shape[3] - size))


def _absorb_query_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return q[s, b, n, d+p] as [s, b, n, r+p], to be compared with latents."""
    (q, w), size = inputs, attributes["head_size"]
    fits = (
        len(q.shape) == 4 and len(w.shape) == 3 and q.shape[2] == w.shape[1] and 0 < size < min(q.shape[3], w.shape[2])
    )
    require(fits, f"q must be [s,b,n,d+p], the weight [r,n,d+e], with d = {size}", *inputs)
    return (q.like(*q.shape[:3], w.shape[0] + q.shape[3] - size),)


def _expand_values_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weighed latents y[s, b, n, r] as values [s, b, n, e]."""
    (y, w), size = inputs, attributes["head_size"]
    fits = len(y.shape) == 4 and len(w.shape) == 3 and y.shape[2:] == (w.shape[1], w.shape[0]) and 0 < size < w.shape[2]
    require(fits, f"y must be [s,b,n,r], the weight [r,n,d+e], with d = {size}", *inputs)
    return (y.like(*y.shape[:3], w.shape[2] - size),)


def _absorb_query_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of a product per head, with the part of the weight that makes keys."""
    return _per_head(inputs, outputs, attributes["head_size"], inputs[1].shape[0])


def _expand_values_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of a product per head, with the part of the weight that makes values."""
    return _per_head(inputs, outputs, inputs[1].shape[0], outputs[0].shape[3])


def _per_head(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], contracted: int, width: int) -> Work:
    x, w = inputs
    tokens, heads = x.shape[0] * x.shape[1], x.shape[2]
    flop, part = 2.0 * tokens * heads * contracted * width, w.like(contracted, heads, width)
    shape = GemmShape(tokens, width, contracted, heads)
    return Work(flop, flop, x.num_bytes + part.num_bytes, outputs[0].num_bytes, shape)


LATENT_KERNELS = (
    Kernel("split_latent", "elementwise", (1, 1), _split_latent_outputs, streaming(0)),
    Kernel("merge_latent", "elementwise", (2, 2), _merge_latent_outputs, streaming(0)),
    Kernel("latent_heads", "elementwise", (2, 2), _latent_heads_outputs, streaming(0)),
    Kernel("absorb_query", "gemm", (2, 2), _absorb_query_outputs, _absorb_query_work),
    Kernel("expand_values", "gemm", (2, 2), _expand_values_outputs, _expand_values_work),
    Kernel("latent_heads_backward", "elementwise", (2, 2), _latent_heads_backward_outputs, streaming(1)),
)
