"""The kernels of a layer's attention on one rank: its projections, of every step, and of prompts.

Grouped queries: keys and values of each head lie in the cache. Latents: one vector per token does, for all heads; steps
bring queries to its width, and prompts expand it to keys and values, those in the cache again (DeepSeek-AI 2024,
DeepSeek-V2, section 2.1). ``sim/training/layers`` lays out the same kernels in plans.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from costmodels.kernels.scaled_latents import LATENT_DTYPE, scaled_caches
from costmodels.kernels.tensor import TensorSpec
from sim.serving.prices.calls import WIDE, KernelCall, call, norm, product
from sim.serving.prices.model import ServedLatent, ServedModel


class Attention(Protocol):
    """A layer's attention on a rank of a tensor-parallel group."""

    def projections(self, tokens: int) -> Sequence[KernelCall]:
        """Return the products with weights of all new tokens."""

    def around_step(self, queries: int) -> Sequence[KernelCall]:
        """Return what steps compute beside attention itself."""

    def of_step(self, rows: int, positions: int, context: int) -> KernelCall:
        """Return the attention of sequences with so many queries each, which see a context of so many tokens."""

    def of_prompt(self, tokens: int, computed: int) -> Sequence[KernelCall]:
        """Return the attention of a piece of a prompt to itself and to the tokens computed before it."""


class _GroupedQueries(Struct, frozen=True):
    model: ServedModel
    heads: int
    kv_heads: int
    weight_dtype: str
    cache_dtype: str

    def projections(self, tokens: int) -> Sequence[KernelCall]:
        hidden, size = self.model.hidden_size, self.model.head_size
        width = (self.heads + 2 * self.kv_heads) * size
        return [
            product(tokens, hidden, width, self.weight_dtype),
            product(tokens, self.heads * size, hidden, self.weight_dtype),
        ]

    def around_step(self, _: int) -> Sequence[KernelCall]:
        return []

    def of_step(self, rows: int, positions: int, context: int) -> KernelCall:
        q = TensorSpec((rows * positions, 1, self.heads, self.model.head_size), WIDE)
        k = TensorSpec((context * rows, 1, self.kv_heads, self.model.head_size), self.cache_dtype)
        return call("decode_attention", (q, k, k), {"spans": ((0, context, positions),) * rows})

    def of_prompt(self, tokens: int, computed: int) -> Sequence[KernelCall]:
        q = TensorSpec((tokens, 1, self.heads, self.model.head_size), WIDE)
        k = TensorSpec((tokens + computed, 1, self.kv_heads, self.model.head_size), WIDE)
        return [call("flash_attention", (q, k, k), {"context": computed})]


class _Latents(Struct, frozen=True):
    model: ServedModel
    latent: ServedLatent
    heads: int
    weight_dtype: str
    cache_dtype: str

    def projections(self, tokens: int) -> Sequence[KernelCall]:
        latent, hidden, dtype = self.latent, self.model.hidden_size, self.weight_dtype
        queries = self.heads * latent.query_head_size
        found = [
            product(tokens, hidden, latent.cached_size, dtype),
            norm(tokens, latent.kv_rank),
            product(tokens, self.heads * latent.value_head_size, hidden, dtype),
        ]
        if latent.q_rank is None:
            return [*found, product(tokens, hidden, queries, dtype)]
        down, up = product(tokens, hidden, latent.q_rank, dtype), product(tokens, latent.q_rank, queries, dtype)
        return [*found, down, norm(tokens, latent.q_rank), up]

    def around_step(self, queries: int) -> Sequence[KernelCall]:
        latent = self.latent
        up = TensorSpec((latent.kv_rank, self.heads, latent.head_size + latent.value_head_size), WIDE)
        q = TensorSpec((queries, 1, self.heads, latent.query_head_size), WIDE)
        y = TensorSpec((queries, 1, self.heads, latent.kv_rank), WIDE)
        size = {"head_size": latent.head_size}
        return [call("absorb_query", (q, up), size), call("expand_values", (y, up), size)]

    def of_step(self, rows: int, positions: int, context: int) -> KernelCall:
        q = TensorSpec((rows * positions, 1, self.heads, self.latent.cached_size), WIDE)
        spans = ((0, context, positions),) * rows
        if self.cache_dtype == LATENT_DTYPE:
            position = TensorSpec((1, 1, 1, self.latent.rotary_head_size), WIDE)
            caches = scaled_caches(context * rows, self.latent.kv_rank, position)
            return call("decode_latents", (q, *caches), {"spans": spans})
        cache = TensorSpec((context * rows, 1, self.latent.cached_size), self.cache_dtype)
        return call("decode_attention", (q, cache), {"spans": spans, "value_size": self.latent.kv_rank})

    def of_prompt(self, tokens: int, computed: int) -> Sequence[KernelCall]:
        latent, seen = self.latent, tokens + computed
        sizes = latent.head_size + latent.value_head_size
        q, k = (TensorSpec((count, 1, self.heads, latent.query_head_size), WIDE) for count in (tokens, seen))
        v = TensorSpec((seen, 1, self.heads, latent.value_head_size), WIDE)
        up, position = (
            TensorSpec((seen, 1, *shape), WIDE) for shape in ((self.heads, sizes), (1, latent.rotary_head_size))
        )
        return [
            product(seen, latent.kv_rank, self.heads * sizes, WIDE),
            call("latent_heads", (up, position), {"head_size": latent.head_size}),
            call("flash_attention", (q, k, v), {"context": computed}),
        ]


def attention_of(model: ServedModel, degree: int, weight_dtype: str, cache_dtype: str) -> Attention:
    """Return a model's attention on a rank of ``degree``; key heads are copied where there are fewer than ranks."""
    heads = -(-model.num_heads // degree)
    if model.latent is not None:
        return _Latents(model, model.latent, heads, weight_dtype, cache_dtype)
    return _GroupedQueries(model, heads, max(1, model.num_kv_heads // degree), weight_dtype, cache_dtype)
