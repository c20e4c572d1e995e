"""Queries, keys and values of multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

Projections down to the latents are replicated, those up are sharded by heads. With sequence parallelism a rank
compresses its own part of the sequence and the latents are gathered, which are narrower than the hidden state
(Megatron-LM, multi_latent_attention.py).
"""

from collections.abc import Sequence

from sim.plan.functions import basic as f
from sim.plan.functions.cached_tokens import CachedTokens
from sim.plan.functions.latent import absorbed_query, expanded_values, joined_latent, latent_heads, split_latent
from sim.plan.functions.linear import PLAIN
from sim.plan.functions.scaled_latents import scaled_latents
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
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
    compressed, position = _latents(b, t, name, x, latent, rotary_base)
    return _expanded(b, t, name, compressed, position, latent)


def _latents(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, latent: LatentAttention, rotary_base: float
) -> tuple[Tensor, Tensor]:
    """Return the compressed keys and values [s, b, r], normalised, and the keys' position part [s, b, 1, p], turned."""
    width = latent.kv_rank + latent.rotary_head_size
    down = b.weights(t, f"{name}.kv_down", (b.model.hidden_size, width), REPLICATED)
    both = b.product(t, f"{name}.kv_down", x, down)
    compressed, position = split_latent(t, f"{name}.kv_down.split", both, latent.kv_rank)
    compressed = b.norm(t, f"{name}.kv_norm", compressed)
    position = b.tensor.enter(t, position)
    return compressed, f.rotary(t, f"{name}.rotary_k", position, rotary_base, b.rows)


def _expanded(
    b: LayerBuilder, t: TaskTracer, name: str, compressed: Tensor, position: Tensor, latent: LatentAttention
) -> tuple[Tensor, Tensor]:
    """Return k[s, b, n, d+p] and v[s, b, n, e] of latents and positions.

    Where latents are cached the product is plain: later tokens absorb the same weight, which is not in eight bits.
    """
    products = PLAIN if isinstance(b.part, CachedTokens) else b.products
    kv = b.tensor.column(t, f"{name}.kv_up", compressed, _up(b, t, name, latent), None, products=products)
    return latent_heads(t, f"{name}.heads", kv, position, latent.head_size)


def _up(b: LayerBuilder, t: TaskTracer, name: str, latent: LatentAttention) -> list[Parameter]:
    """Return the weight of the projection up, [r, n, d+e]."""
    return b.column_weights(t, f"{name}.kv_up", (latent.kv_rank, b.model.num_heads, latent.kv_head_size))


def cached_latent_attention(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, rotary_base: float, tokens: CachedTokens
) -> Tensor:
    """Return the attention of new tokens, which leave their latents in a cache [slots, 1, r+p] for all heads.

    Prompts expand their own latents to keys and values. Later tokens bring queries to the latents' width instead, so
    that nothing in the cache is expanded (DeepSeek-V2, section 2.1.2).
    """
    latent = b.model.latent_attention
    assert latent is not None
    q = _queries(b, t, name, x, latent, rotary_base)
    compressed, position = _latents(b, t, name, x, latent, rotary_base)
    caches = _cached(t, name, compressed, position, tokens)
    if tokens.is_whole:
        return tokens.attend_to_own(t, f"{name}.attention", (q, *_expanded(b, t, name, compressed, position, latent)))
    (up,), size = _up(b, t, name, latent), latent.head_size
    q = absorbed_query(t, f"{name}.absorbed_q", q, up, size)
    form = {"kernel": "decode_latents"} if tokens.cache_dtype else {"value_size": latent.kv_rank}
    y = tokens.attend(t, f"{name}.attention", (q, *caches), scaled_as=latent.query_head_size, **form)
    return expanded_values(t, f"{name}.expanded", y, up, size)


def _cached(t: TaskTracer, name: str, compressed: Tensor, position: Tensor, tokens: CachedTokens) -> Sequence[Tensor]:
    """Write new tokens' latents and positions into caches: one of both, or three where latents have eight bits."""
    if tokens.cache_dtype:
        return scaled_latents(t, f"{name}.latents", compressed, position, tokens)
    return [tokens.cached(t, f"{name}.latents", joined_latent(t, f"{name}.latent", compressed, position))]
