"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): between its projections and its scores.

Changes of shape, bound by memory bandwidth. As Megatron-LM without fused rotary positions: whole keys are written.
"""

from collections.abc import Sequence

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, require


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


LATENT_KERNELS = (
    Kernel("split_latent", "elementwise", (1, 1), _split_latent_outputs, streaming(0)),
    Kernel("merge_latent", "elementwise", (2, 2), _merge_latent_outputs, streaming(0)),
    Kernel("latent_heads", "elementwise", (2, 2), _latent_heads_outputs, streaming(0)),
    Kernel("latent_heads_backward", "elementwise", (2, 2), _latent_heads_backward_outputs, streaming(1)),
)
