"""Multi-head latent attention in plain torch, for the dense reference: DeepSeek-V2, equations 9 to 19."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as nn

from sim.training.spec.models.latent import LatentAttention

Turn = Callable[[Tensor], Tensor]
"""A function that applies rotary positions to all channels of a tensor [s, b, n, d]."""


def latent_shapes(latent: LatentAttention, hidden_size: int, num_heads: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that replace a layer's single projection to queries, keys and values."""
    query, key_value = latent.head_size + latent.rotary_head_size, latent.head_size + latent.value_head_size
    shapes: dict[str, tuple[int, ...]] = {
        "kv_down.weight": (hidden_size, latent.kv_rank + latent.rotary_head_size),
        "kv_norm.weight": (latent.kv_rank,),
        "kv_up.weight": (latent.kv_rank, num_heads, key_value),
    }
    if latent.q_rank is None:
        return shapes | {"q.weight": (hidden_size, num_heads, query)}
    return shapes | {
        "q_down.weight": (hidden_size, latent.q_rank),
        "q_norm.weight": (latent.q_rank,),
        "q_up.weight": (latent.q_rank, num_heads, query),
    }


def latent_qkv(
    x: Tensor,
    weights: Mapping[str, Tensor],
    latent: LatentAttention,
    turn: Turn,
    epsilon: float,
    operand: Callable[[Tensor], Tensor],
    kept: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys [s, b, n, d+p] and values [s, b, n, e] of x[s, b, h]. ``weights``: by name in a layer.

    ``operand``: how products take x, and compressed queries. ``kept``: how later queries see latents.
    """
    x = operand(x)
    queries, compressed = x, x @ weights["kv_down.weight"]
    if latent.q_rank is not None:
        normed = nn.rms_norm(x @ weights["q_down.weight"], (latent.q_rank,), weights["q_norm.weight"], epsilon)
        queries = operand(normed)
    q = torch.einsum("sbr,rnd->sbnd", queries, weights["q.weight" if latent.q_rank is None else "q_up.weight"])
    c, shared = compressed[..., : latent.kv_rank], compressed[..., latent.kv_rank :]
    c = nn.rms_norm(c, (latent.kv_rank,), weights["kv_norm.weight"], epsilon)
    kv = torch.einsum("sbr,rnd->sbnd", kept(c), weights["kv_up.weight"])
    shared = turn(shared.unsqueeze(2)).repeat(1, 1, kv.shape[2], 1)
    q = torch.cat((q[..., : latent.head_size], turn(q[..., latent.head_size :])), -1)
    return q, torch.cat((kv[..., : latent.head_size], shared), -1), kv[..., latent.head_size :]
