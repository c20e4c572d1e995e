"""The time of one iteration of a replica: one pass of the model over the tokens that are in the batch.

An iteration has rows (sequences that decode, each with some query positions) and chunks of prompts. Matrix products
read the weights once for all tokens; attention is priced by flash decoding for rows and by flash attention
for chunks. All kernels run one after the other, so an iteration is the sum of its kernels and collectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.hardware import NodeSpec
from costmodels.kernels import KERNELS
from costmodels.kernels.tensor import GemmShape, TensorSpec, Work
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import kernel_time, kernel_times
from sim.serving.model import ServedModel
from sim.serving.software import ServingSoftware

Floats = NDArray[np.float64]

_CONTEXTS: Final = tuple(sorted({round(2.0 ** (eighth / 4)) for eighth in range(24, 81)}))
"""Lengths of a context at which decoding attention is priced, 64 to 1,048,576; it is linear between them."""
_EXACT_TOKENS: Final = 512
_TOKENS_STEP: Final = 64
"""Products of more than 512 tokens are priced at the next multiple of 64, a tile's height."""
_CONTEXT_STEP: Final = 256
"""A chunk's attention is priced at the next multiple of 256 tokens before it."""


class Chunk(Struct, frozen=True):
    """A piece of a prompt that an iteration computes: ``tokens`` of it, after ``computed`` tokens."""

    tokens: int
    computed: int


class IterationCost(Protocol):
    """The time of iterations, in seconds."""

    def pass_s(self, rows: int, positions: int, contexts: Floats, chunks: Sequence[Chunk] = ()) -> Floats:
        """Return the time of a pass, one for each mean context of its decoding rows.

        ``rows`` sequences decode, each with ``positions`` new tokens that see a context of so many tokens in the mean.
        """


@dataclass(slots=True, kw_only=True)
class KernelCost:
    """Prices of a model on one tensor-parallel replica, from the kernels' profiles.

    ``ranks_per_node``: how the replica lies on nodes. ``weight_dtype``: of the operands of products.
    ``cache_dtype``: of keys and values in the cache. All else has 16 bits.
    """

    model: ServedModel
    node: NodeSpec
    profile: Profile
    ranks_per_node: tuple[int, ...] = (1,)
    weight_dtype: str = "bfloat16"
    cache_dtype: str = "bfloat16"
    software: ServingSoftware = field(default_factory=ServingSoftware)
    _linear: dict[int, float] = field(default_factory=dict, init=False)
    _heads: dict[int, float] = field(default_factory=dict, init=False)
    _rows: dict[tuple[int, int], Floats] = field(default_factory=dict, init=False)
    _chunks: dict[tuple[int, int], float] = field(default_factory=dict, init=False)

    @property
    def degree(self) -> int:
        """Return the number of devices of the replica."""
        return sum(self.ranks_per_node)

    def pass_s(self, rows: int, positions: int, contexts: Floats, chunks: Sequence[Chunk] = ()) -> Floats:
        """Return the time of a pass, one for each mean context; see ``IterationCost``."""
        tokens = rows * positions + sum(chunk.tokens for chunk in chunks)
        fixed_s = self.software.iteration_s + self.software.sequence_s * (rows + len(chunks))
        fixed_s += self.linear_s(tokens) + self.head_s(rows * positions + len(chunks))
        fixed_s += sum(self.chunk_s(chunk) for chunk in chunks)
        if not rows:
            return np.full(len(contexts), fixed_s)
        return fixed_s + np.interp(contexts + positions, _CONTEXTS, self.rows_s(rows, positions))

    def linear_s(self, tokens: int) -> float:
        """Return the time of everything in the layers but attention, for so many tokens."""
        if tokens > _EXACT_TOKENS:
            tokens = -(-tokens // _TOKENS_STEP) * _TOKENS_STEP
        found = self._linear.get(tokens)
        if found is None:
            found = self._linear[tokens] = self._linear_s(tokens)
        return found

    def head_s(self, rows: int) -> float:
        """Return the time of the output layer for the positions at which a token is chosen."""
        found = self._heads.get(rows)
        if found is None:
            width = -(-self.model.vocab_size // self.degree)
            gathered_s = self._collective_s("all_gather", rows * width * self.degree * 2)
            found = self._heads[rows] = self._product_s(rows, self.model.hidden_size, width, "bfloat16") + gathered_s
        return found

    def rows_s(self, rows: int, positions: int) -> Floats:
        """Return the time of the decoding attention of all layers at each of the priced contexts."""
        found = self._rows.get((rows, positions))
        if found is None:
            kernel, (heads, kv_heads) = KERNELS["decode_attention"], self._heads_per_rank()
            works = []
            for context in _CONTEXTS:
                q = TensorSpec((rows * positions, 1, heads, self.model.head_size), "bfloat16")
                k = TensorSpec((context * rows, 1, kv_heads, self.model.head_size), self.cache_dtype)
                works.append(kernel.work((q, k, k), (q,), {"spans": ((0, context, positions),) * rows}))
            times = kernel_times(works, kernel.family, "bfloat16", self.node.device, self.profile, kernel.name)
            found = self._rows[rows, positions] = self.model.num_layers * times.alone_s
        return found

    def chunk_s(self, chunk: Chunk) -> float:
        """Return the time of the attention of a chunk to its own tokens and those before it, in all layers."""
        tokens = -(-chunk.tokens // _TOKENS_STEP) * _TOKENS_STEP
        computed = -(-chunk.computed // _CONTEXT_STEP) * _CONTEXT_STEP
        found = self._chunks.get((tokens, computed))
        if found is None:
            heads, kv_heads = self._heads_per_rank()
            q = TensorSpec((tokens, 1, heads, self.model.head_size), "bfloat16")
            k = TensorSpec((tokens + computed, 1, kv_heads, self.model.head_size), "bfloat16")
            found = self.model.num_layers * self._kernel_s("flash_attention", (q, k, k), {"context": computed})
            self._chunks[tokens, computed] = found
        return found

    def layer_s(self, tokens: int) -> float:
        """Return the time of a layer without its attention."""
        return self.linear_s(tokens) / self.model.num_layers

    def square_s(self, rows: int) -> float:
        """Return the time of a product with a square matrix of the hidden size, which every rank does whole."""
        return self._product_s(rows, self.model.hidden_size, self.model.hidden_size, "bfloat16")

    def _heads_per_rank(self) -> tuple[int, int]:
        """Return query heads and key heads of a rank; key heads are copied where there are fewer than ranks."""
        return -(-self.model.num_heads // self.degree), max(1, self.model.num_kv_heads // self.degree)

    def _linear_s(self, tokens: int) -> float:
        model, heads = self.model, self._heads_per_rank()
        hidden = TensorSpec((tokens, 1, model.hidden_size), "bfloat16")
        weight = TensorSpec((model.hidden_size,), "bfloat16")
        around_s = 2.0 * self._kernel_s("rms_norm", (hidden, weight))
        around_s += 2.0 * self._kernel_s("add", (hidden, hidden))
        around_s += 2.0 * self._collective_s("all_reduce", hidden.num_bytes)
        width = (heads[0] + 2 * heads[1]) * model.head_size
        attention_s = self._product_s(tokens, model.hidden_size, width, self.weight_dtype)
        attention_s += self._product_s(tokens, heads[0] * model.head_size, model.hidden_size, self.weight_dtype)
        layers_s = model.num_layers * (around_s + attention_s)
        layers_s += model.num_dense_layers * self._mlp_s(tokens, model.ffn_hidden_size)
        return layers_s + (model.num_layers - model.num_dense_layers) * self._experts_s(tokens)

    def _mlp_s(self, tokens: int, whole_width: int) -> float:
        """Return the time of an MLP of this width over all ranks."""
        model, width = self.model, -(-whole_width // self.degree)
        kernel, shape = ("swiglu", (tokens, 1, 2, width)) if model.gated else ("gelu", (tokens, 1, 1, width))
        up_s = self._product_s(tokens, model.hidden_size, shape[2] * width, self.weight_dtype)
        gate_s = self._kernel_s(kernel, (TensorSpec(shape, "bfloat16"),))
        return up_s + gate_s + self._product_s(tokens, width, model.hidden_size, self.weight_dtype)

    def _experts_s(self, tokens: int) -> float:
        """Return the time of a layer's router and experts: one grouped product over the experts that are touched."""
        of = self.model.experts
        if of is None:
            return 0.0
        touched = max(1, round(of.touched(tokens)))
        rows, width = -(-tokens * of.top_k // touched), -(-of.ffn_hidden_size // self.degree)
        time_s = self._product_s(tokens, self.model.hidden_size, of.num_experts, "bfloat16")
        time_s += self._grouped_s(touched, rows, self.model.hidden_size, 2 * width)
        time_s += self._grouped_s(touched, rows, width, self.model.hidden_size)
        if of.shared_ffn_hidden_size:
            time_s += self._mlp_s(tokens, of.shared_ffn_hidden_size)
        return time_s

    def _grouped_s(self, count: int, rows: int, contracted: int, width: int) -> float:
        """Return the time of as many products [rows, contracted] x [contracted, width] in one kernel."""
        item = TensorSpec((1,), self.weight_dtype).num_bytes
        flop = 2.0 * count * rows * contracted * width
        read = count * (rows * contracted + contracted * width) * item
        work = Work(flop, flop, read, count * rows * width * 2, GemmShape(rows, width, contracted, count))
        return kernel_time(work, "gemm", self.weight_dtype, self.node.device, self.profile).alone_s

    def _product_s(self, rows: int, contracted: int, width: int, dtype: str) -> float:
        return self._kernel_s("matmul", (TensorSpec((rows, contracted), dtype), TensorSpec((contracted, width), dtype)))

    def _kernel_s(self, name: str, inputs: tuple[TensorSpec, ...], attributes: dict[str, float] | None = None) -> float:
        kernel, given = KERNELS[name], attributes or {}
        work = kernel.work(inputs, kernel.outputs(inputs, given), given)
        return kernel_time(work, kernel.family, inputs[0].dtype, self.node.device, self.profile, name).alone_s

    def _collective_s(self, kind: str, num_bytes: int) -> float:
        if self.degree == 1:
            return 0.0
        network = network_parameters(self.node, self.profile)
        cost = collective_cost(kind, num_bytes, self.ranks_per_node, network)
        library_s = exclusive_seconds(cost, self.ranks_per_node, network)
        if len(self.ranks_per_node) > 1:
            return library_s
        return min(library_s, self.software.collective_s(kind, num_bytes, self.degree, network))


@lru_cache(maxsize=64)
def kernel_cost(
    *,
    model: ServedModel,
    node: NodeSpec,
    profile: Profile,
    ranks_per_node: tuple[int, ...],
    weight_dtype: str,
    cache_dtype: str,
    software: ServingSoftware,
) -> KernelCost:
    """Return the prices of a model on a replica: the same object for the same numbers, which remembers its prices."""
    return KernelCost(
        model=model,
        node=node,
        profile=profile,
        ranks_per_node=ranks_per_node,
        weight_dtype=weight_dtype,
        cache_dtype=cache_dtype,
        software=software,
    )
