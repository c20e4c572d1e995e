"""The time of one iteration of a replica: one pass of the model over the tokens that are in the batch.

An iteration has rows (sequences that decode, each with some query positions) and chunks of prompts. Matrix products
read the weights once for all tokens; attention is priced by flash decoding for rows and by flash attention
for chunks. All kernels run one after the other, so an iteration is the sum of its kernels and collectives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.hardware import NodeSpec
from costmodels.kernels import KERNELS
from costmodels.kernels.tensor import Family, GemmShape, TensorSpec, Work
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import kernel_times, times_of_kernels
from sim.serving.model import ServedModel
from sim.serving.software import ServingSoftware

Floats = NDArray[np.float64]

_WIDE: Final = "bfloat16"
_CONTEXTS: Final = tuple(round(2.0 ** (eighth / 4)) for eighth in range(24, 81))
"""Lengths of a context at which decoding attention is priced, 64 to 1,048,576; it is linear between them."""
_EXACT_TOKENS: Final = 512
_TOKENS_STEP: Final = 64
"""Products of more than 512 tokens are priced at the next multiple of 64, a tile's height."""
_PRICED_TOGETHER: Final = 16
"""So many neighbouring numbers of tokens are priced in one pass, which takes hardly longer than one of them."""
_CONTEXT_STEP: Final = 256
"""A chunk's attention is priced at the next multiple of 256 tokens before it."""


class Chunk(Struct, frozen=True):
    """A piece of a prompt that an iteration computes: ``tokens`` of it, after ``computed`` tokens."""

    tokens: int
    computed: int


class _Call(Struct, frozen=True):
    """A kernel call that a pass makes ``count`` times. ``name``: of the kernel, for parameters of that kernel alone."""

    count: int
    work: Work
    family: Family
    dtype: str
    name: str


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
    _passes: dict[tuple[int, int], Floats] = field(default_factory=dict, init=False)
    _chunks: dict[tuple[int, int], float] = field(default_factory=dict, init=False)
    _squares: dict[int, float] = field(default_factory=dict, init=False)
    _contexts: Floats = field(default_factory=lambda: np.array(_CONTEXTS, dtype=np.float64), init=False)

    @property
    def degree(self) -> int:
        """Return the number of devices of the replica."""
        return sum(self.ranks_per_node)

    def pass_s(self, rows: int, positions: int, contexts: Floats, chunks: Sequence[Chunk] = ()) -> Floats:
        """Return the time of a pass, one for each mean context; see ``IterationCost``."""
        if not chunks:
            curve = self._passes.get((rows, positions))
            if curve is None:
                curve = self._passes[rows, positions] = self._fixed_s(rows, positions, ()) + self.rows_s(
                    rows, positions
                )
            return np.interp(contexts + positions, self._contexts, curve)
        fixed_s = self._fixed_s(rows, positions, chunks)
        if not rows:
            return np.full(len(contexts), fixed_s)
        return fixed_s + np.interp(contexts + positions, self._contexts, self.rows_s(rows, positions))

    def _fixed_s(self, rows: int, positions: int, chunks: Sequence[Chunk]) -> float:
        """Return the time of a pass without the attention of its rows."""
        tokens = rows * positions + sum(chunk.tokens for chunk in chunks)
        host_s = self.software.iteration_s + self.software.sequence_s * (rows + len(chunks))
        products_s = self.linear_s(tokens) + self.head_s(rows * positions + len(chunks))
        return host_s + products_s + sum(self.chunk_s(chunk) for chunk in chunks)

    def linear_s(self, tokens: int) -> float:
        """Return the time of everything in the layers but attention, for so many tokens."""
        step = 1 if tokens <= _EXACT_TOKENS else _TOKENS_STEP
        tokens = -(-tokens // step) * step
        if tokens not in self._linear:
            near = _neighbours(tokens, step)
            times = self._times_s([self._linear_calls(count) for count in near])
            for count, time_s in zip(near, times, strict=True):
                summed_s = self._collective_s(
                    "all_reduce", TensorSpec((count, self.model.hidden_size), _WIDE).num_bytes
                )
                self._linear[count] = time_s + 2.0 * self.model.num_layers * summed_s
        return self._linear[tokens]

    def head_s(self, rows: int) -> float:
        """Return the time of the output layer for the positions at which a token is chosen."""
        if rows not in self._heads:
            near, width = _neighbours(rows, 1), -(-self.model.vocab_size // self.degree)
            calls = [[self._product(1, count, self.model.hidden_size, width, _WIDE)] for count in near]
            for count, time_s in zip(near, self._times_s(calls), strict=True):
                gathered_s = self._collective_s("all_gather", count * width * self.degree * 2)
                self._heads[count] = time_s + gathered_s
        return self._heads[rows]

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
        if (tokens, computed) not in self._chunks:
            near = _neighbours(tokens, _TOKENS_STEP)
            times = self._times_s([[self._prompt_attention(count, computed)] for count in near])
            self._chunks.update({(count, computed): time_s for count, time_s in zip(near, times, strict=True)})
        return self._chunks[tokens, computed]

    def layer_s(self, tokens: int) -> float:
        """Return the time of a layer without its attention."""
        return self.linear_s(tokens) / self.model.num_layers

    def square_s(self, rows: int) -> float:
        """Return the time of a product with a square matrix of the hidden size, which every rank does whole."""
        if rows not in self._squares:
            width = self.model.hidden_size
            [self._squares[rows]] = self._times_s([[self._product(1, rows, width, width, _WIDE)]])
        return self._squares[rows]

    def _heads_per_rank(self) -> tuple[int, int]:
        """Return query heads and key heads of a rank; key heads are copied where there are fewer than ranks."""
        return -(-self.model.num_heads // self.degree), max(1, self.model.num_kv_heads // self.degree)

    def _linear_calls(self, tokens: int) -> list[_Call]:
        """Return the calls of a pass, without attention and the output layer."""
        model, heads = self.model, self._heads_per_rank()
        hidden, weight = TensorSpec((tokens, 1, model.hidden_size), _WIDE), TensorSpec((model.hidden_size,), _WIDE)
        width = (heads[0] + 2 * heads[1]) * model.head_size
        return [
            _call(2 * model.num_layers, "rms_norm", (hidden, weight)),
            _call(2 * model.num_layers, "add", (hidden, hidden)),
            self._product(model.num_layers, tokens, model.hidden_size, width, self.weight_dtype),
            self._product(model.num_layers, tokens, heads[0] * model.head_size, model.hidden_size, self.weight_dtype),
            *self._mlp_calls(model.num_dense_layers, tokens, model.ffn_hidden_size),
            *self._expert_calls(model.num_layers - model.num_dense_layers, tokens),
        ]

    def _mlp_calls(self, layers: int, tokens: int, whole_width: int) -> list[_Call]:
        """Return the calls of an MLP of this width over all ranks, in so many layers."""
        model, width = self.model, -(-whole_width // self.degree)
        kernel, shape = ("swiglu", (tokens, 1, 2, width)) if model.gated else ("gelu", (tokens, 1, 1, width))
        return [
            self._product(layers, tokens, model.hidden_size, shape[2] * width, self.weight_dtype),
            _call(layers, kernel, (TensorSpec(shape, _WIDE),)),
            self._product(layers, tokens, width, model.hidden_size, self.weight_dtype),
        ]

    def _expert_calls(self, layers: int, tokens: int) -> list[_Call]:
        """Return the calls of router and experts: grouped products over the experts that are touched."""
        model, of = self.model, self.model.experts
        if of is None:
            return []
        touched = max(1, round(of.touched(tokens)))
        rows, width = -(-tokens * of.top_k // touched), -(-of.ffn_hidden_size // self.degree)
        shared = self._mlp_calls(layers, tokens, of.shared_ffn_hidden_size) if of.shared_ffn_hidden_size else []
        return [
            self._product(layers, tokens, model.hidden_size, of.num_experts, _WIDE),
            self._grouped(layers, (touched, rows, model.hidden_size, 2 * width)),
            self._grouped(layers, (touched, rows, width, model.hidden_size)),
            *shared,
        ]

    def _prompt_attention(self, tokens: int, computed: int) -> _Call:
        """Return the calls of a chunk's attention in all layers."""
        heads, kv_heads = self._heads_per_rank()
        q = TensorSpec((tokens, 1, heads, self.model.head_size), _WIDE)
        k = TensorSpec((tokens + computed, 1, kv_heads, self.model.head_size), _WIDE)
        return _call(self.model.num_layers, "flash_attention", (q, k, k), {"context": computed})

    def _grouped(self, layers: int, shape: tuple[int, int, int, int]) -> _Call:
        """Return the call of products [rows, contracted] x [contracted, width] in one kernel.

        ``shape``: their number, rows, contracted and width.
        """
        count, rows, contracted, width = shape
        item = TensorSpec((1,), self.weight_dtype).num_bytes
        flop = 2.0 * count * rows * contracted * width
        read = count * (rows * contracted + contracted * width) * item
        work = Work(flop, flop, read, count * rows * width * 2, GemmShape(rows, width, contracted, count))
        return _Call(layers, work, "gemm", self.weight_dtype, "")

    def _product(self, count: int, rows: int, contracted: int, width: int, dtype: str) -> _Call:
        return _call(count, "matmul", (TensorSpec((rows, contracted), dtype), TensorSpec((contracted, width), dtype)))

    def _times_s(self, passes: Sequence[Sequence[_Call]]) -> list[float]:
        """Return the time of each of several passes; calls of one kernel are priced together."""
        groups: dict[tuple[Family, str, str], list[tuple[int, _Call]]] = {}
        for place, calls in enumerate(passes):
            for call in calls:
                groups.setdefault((call.family, call.dtype, call.name), []).append((place, call))
        found = [0.0] * len(passes)
        for (family, dtype, name), placed in groups.items():
            works = [call.work for _, call in placed]
            times = times_of_kernels(works, family, dtype, self.node.device, self.profile, name)
            for (place, call), time in zip(placed, times, strict=True):
                found[place] += call.count * time.alone_s
        return found

    def _collective_s(self, kind: str, num_bytes: int) -> float:
        if self.degree == 1:
            return 0.0
        network = network_parameters(self.node, self.profile)
        cost = collective_cost(kind, num_bytes, self.ranks_per_node, network)
        library_s = exclusive_seconds(cost, self.ranks_per_node, network)
        if len(self.ranks_per_node) > 1:
            return library_s
        return min(library_s, self.software.collective_s(kind, num_bytes, self.degree, network))


def _call(
    count: int, name: str, inputs: tuple[TensorSpec, ...], attributes: Mapping[str, float] | None = None
) -> _Call:
    """Return a call of a kernel with these inputs."""
    kernel, given = KERNELS[name], attributes or {}
    work = kernel.work(inputs, kernel.outputs(inputs, given), given)
    return _Call(count, work, kernel.family, inputs[0].dtype, name)


def _neighbours(number: int, step: int) -> range:
    """Return the multiples of a step that are priced together with this one, itself among them."""
    span = _PRICED_TOGETHER * step
    first = (number - step) // span * span
    return range(first + step, first + span + step, step)


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
