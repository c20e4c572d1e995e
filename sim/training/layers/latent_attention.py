"""Queries, keys and values of multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

Projections down to the latents are replicated, those up are sharded by heads. With sequence parallelism a rank
compresses its own part of the sequence and the latents are gathered, which are narrower than the hidden state
(Megatron-LM, multi_latent_attention.py).
"""

from sim.plan.functions import basic as f
from sim.plan.functions.latent import latent_heads, split_latent
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.layout import REPLICATED
from sim.training.layers.layer import LayerBuilder
from sim.training.spec.models.latent import LatentAttention


def latent_qkv(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, latent: LatentAttention, rotary_base: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q[s, b, n, d+p], k[s, b, n, d+p] and v[s, b, n, e] of x as the residual stream lies, normalised."""
    return _queries(b, t, name, x, latent, rotary_base), *_keys_and_values(b, t, name, x, latent, rotary_base)


def _queries(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, latent: LatentAttention, rotary_base: float
) -> Tensor:
    heads = (b.model.num_heads, latent.query_head_size)
    if latent.q_rank is None:
        weight = b.column_weights(t, f"{name}.q", (b.model.hidden_size, *heads))
        q = b.column(t, f"{name}.q", x, weight)
    else:
        down = b.weights(t, f"{name}.q_down", (b.model.hidden_size, latent.q_rank), REPLICATED)
        compressed = b.norm(t, f"{name}.q_norm", b.product(t, f"{name}.q_down", x, down))
        up = b.column_weights(t, f"{name}.q_up", (latent.q_rank, *heads))
        q = b.column(t, f"{name}.q_up", compressed, up)
    return f.rotary(t, f"{name}.rotary_q", q, rotary_base, b.rows, width=latent.rotary_head_size)


def _keys_and_values(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, latent: LatentAttention, rotary_base: float
) -> tuple[Tensor, Tensor]:
    width = latent.kv_rank + latent.rotary_head_size
    down = b.weights(t, f"{name}.kv_down", (b.model.hidden_size, width), REPLICATED)
    both = b.product(t, f"{name}.kv_down", x, down)
    compressed, position = split_latent(t, f"{name}.kv_down.split", both, latent.kv_rank)
    compressed = b.norm(t, f"{name}.kv_norm", compressed)
    heads = (b.model.num_heads, latent.kv_head_size)
    kv = b.column(t, f"{name}.kv_up", compressed, b.column_weights(t, f"{name}.kv_up", (latent.kv_rank, *heads)))
    position = f.rotary(t, f"{name}.rotary_k", b.tensor.enter(t, position), rotary_base, b.rows)
    return latent_heads(t, f"{name}.heads", kv, position, latent.head_size)
