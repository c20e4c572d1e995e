"""The attention of a layer: from its normalised input to what the residual stream gets, biases apart."""

from collections.abc import Sequence

from sim.plan.functions import basic as f
from sim.plan.functions import cached_tokens
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.layers import latent_attention
from sim.training.layers.layer import LayerBuilder


def attention(b: LayerBuilder, t: TaskTracer, index: int, x: Tensor) -> Tensor:
    """Return self-attention of x in one layer, of whatever heads the model has."""
    m, name = b.model, f"layer{index}"
    y = _attended(b, t, index, x)
    output = b.row_weights(t, f"{name}.projection", (m.num_heads, m.head_size, m.hidden_size))
    return b.row(t, f"{name}.projection", y, output, contract=2)


def _attended(b: LayerBuilder, t: TaskTracer, index: int, x: Tensor) -> Tensor:
    """Return the heads' results [s, b, n, e], before they are projected to the hidden state."""
    m, name, kind = b.model, f"layer{index}", b.model.kind_of(index)
    latent, base = m.latent_attention, kind.rotary_base
    if latent is not None and isinstance(b.part, cached_tokens.CachedTokens):
        return latent_attention.cached_latent_attention(b, t, name, x, base, b.part)
    q, k, v = _qkv(b, t, name, x, base) if latent is None else latent_attention.latent_qkv(b, t, name, x, latent, base)
    if b.part:
        k, v = b.part.cached(t, f"{name}.keys", k), b.part.cached(t, f"{name}.values", v)
    return attend(b, t, f"{name}.attention", (q, k, v), kind.window.size if kind.window else 0)


def _qkv(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, rotary_base: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of multi-head or grouped-query attention (Ainslie et al. 2023)."""
    m = b.model
    shape = (m.num_kv_heads, m.num_heads // m.num_kv_heads + 2, m.head_size)
    weight = b.column_weights(t, f"{name}.qkv", (m.hidden_size, *shape))
    bias = b.column_bias(t, f"{name}.qkv", shape, biased=m.qkv_bias)
    q, k, v = f.split_qkv(t, f"{name}.qkv", b.column(t, f"{name}.qkv", x, weight, bias))
    if m.query_key_norm:
        q, k = b.head_norm(t, f"{name}.q_norm", q), b.head_norm(t, f"{name}.k_norm", k)
    if m.family == "llama":
        q = f.rotary(t, f"{name}.rotary_q", q, rotary_base, b.rows)
        k = f.rotary(t, f"{name}.rotary_k", k, rotary_base, b.rows)
    return q, k, v


def attend(b: LayerBuilder, t: TaskTracer, name: str, qkv: Sequence[Tensor], window: int = 0) -> Tensor:
    """Return the attention of queries to keys and values, recomputed in backward if ``recompute`` is selective.

    ``window``: keys that a query sees at most; 0: all up to its own.
    """

    def scored(tracer: TaskTracer, inputs: Sequence[Tensor]) -> Tensor:
        m = b.model
        scoring = Scoring(m.attention == "flash", m.causal, m.dropout, window, m.score_cap)
        return (b.part or b.sequence).attention(tracer, name, inputs, scoring)

    return b.checkpointed(t, scored, qkv) if b.recompute == "selective" else scored(t, qkv)
