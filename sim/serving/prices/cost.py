"""The time of one iteration of a replica: passes of the model over the tokens that are in the batch.

An iteration has rows (sequences that decode, each with some query positions) and chunks of prompts. Matrix products
read the weights once for all tokens; attention is priced by flash decoding for rows and by flash attention
for chunks. All kernels run one after the other, so a pass is the sum of its kernels and collectives.

The batch has a micro-batch for each stage of a pipeline (``cycle_s``). Groups that share out experts take equal parts
of a micro-batch, and wait for the one with most tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.hardware import NodeSpec
from costmodels.kernels.tensor import TensorSpec
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import kernel_times
from sim.serving.prices.attention import Attention, attention_of
from sim.serving.prices.calls import WIDE, KernelClock, PriceTable
from sim.serving.prices.layers import LayerCalls
from sim.serving.prices.layout import ReplicaLayout, Stage
from sim.serving.prices.messages import ReplicaMessages
from sim.serving.prices.microbatches import Chunk, Microbatch, microbatches
from sim.serving.prices.model import ServedModel
from sim.serving.prices.software import ServingSoftware
from sim.serving.prices.steps import ContextTimes, context_times

Floats = NDArray[np.float64]
Seconds = Floats | float
"""Of an iteration at each of several contexts, or at one."""

_CONTEXTS: Final = tuple(round(2.0 ** (eighth / 4)) for eighth in range(24, 81))
"""Lengths of a context at which decoding attention is priced, 64 to 1,048,576; it is linear between them."""
_EXACT_TOKENS: Final = 512
_TOKENS_STEP: Final = 64
"""Products of more than 512 tokens are priced at the next multiple of 64, a tile's height."""
_CONTEXT_STEP: Final = 256
"""A chunk's attention is priced at the next multiple of 256 tokens before it."""


class IterationCost(Protocol):
    """The time of iterations, in seconds. ``rows`` sequences decode, each with ``positions`` new tokens."""

    def steps(self, rows: int, positions: int) -> ContextTimes:
        """Return the time of an iteration that only decodes, by the tokens that rows see: context and new ones."""

    def pass_s(self, rows: int, positions: int, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of an iteration whose rows have a context of so many tokens in the mean."""


class _LayerTimes(Struct, frozen=True):
    """The seconds of a micro-batch's parts: a layer with an MLP, one with experts, both without their steps' attention.

    ``attention_s``: of steps, in any layer. ``head_s``: the output layer.
    """

    dense_s: float
    sparse_s: float
    attention_s: Seconds
    head_s: float

    def of(self, stage: Stage) -> Seconds:
        """Return the time of a stage."""
        fixed_s = stage.num_dense * self.dense_s + stage.num_sparse * self.sparse_s
        return stage.num_layers * self.attention_s + (fixed_s + (self.head_s if stage.is_last else 0.0))


@dataclass(slots=True, kw_only=True)
class KernelCost:
    """Prices of a model on one replica, from the kernels' profiles.

    ``weight_dtype``: of the operands of products. ``cache_dtype``: of what the cache holds. All else has 16 bits.
    """

    model: ServedModel
    node: NodeSpec
    profile: Profile
    layout: ReplicaLayout = field(default_factory=ReplicaLayout)
    weight_dtype: str = WIDE
    cache_dtype: str = WIDE
    software: ServingSoftware = field(default_factory=ServingSoftware)
    messages: ReplicaMessages = field(init=False)
    stages: tuple[Stage, ...] = field(init=False)
    _clock: KernelClock = field(init=False)
    _attention: Attention = field(init=False)
    _tables: dict[str, PriceTable] = field(init=False)
    _rows: dict[tuple[int, int], Floats] = field(default_factory=dict, init=False)
    _steps: dict[tuple[int, int], ContextTimes] = field(default_factory=dict, init=False)
    _chunks: dict[int, PriceTable] = field(default_factory=dict, init=False)
    _contexts: Floats = field(default_factory=lambda: np.array(_CONTEXTS, dtype=np.float64), init=False)

    def __post_init__(self) -> None:
        model, degree = self.model, self.layout.tensor_degree
        self.messages = ReplicaMessages(self.layout, network_parameters(self.node, self.profile), self.software)
        self.stages = self.layout.stages(model.num_dense_layers, model.num_layers - model.num_dense_layers)
        self._clock = KernelClock(self.node.device, self.profile)
        self._attention = attention_of(model, degree, self.weight_dtype, self.cache_dtype)
        calls = LayerCalls(model, self.layout, self._attention, self.weight_dtype)
        self._tables = {
            "common": PriceTable(self._clock, calls.common, self._sums_s),
            "mlp": PriceTable(self._clock, calls.mlp),
            "beside_experts": PriceTable(self._clock, calls.beside_experts, self._exchanges_s),
            "experts": PriceTable(self._clock, calls.experts),
            "head": PriceTable(self._clock, calls.head, self._gathered_s),
            "square": PriceTable(self._clock, calls.square),
        }

    def steps(self, rows: int, positions: int) -> ContextTimes:
        """Return the time of an iteration that only decodes; see ``IterationCost``."""
        found = self._steps.get((rows, positions))
        if found is None:
            parts = microbatches(self.layout, rows, positions, ())
            times_s = np.broadcast_to(self._iteration_s(parts, self._contexts), len(_CONTEXTS))
            found = self._steps[rows, positions] = context_times(_CONTEXTS, times_s.tolist())
        return found

    def pass_s(self, rows: int, positions: int, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of an iteration; see ``IterationCost``."""
        if not chunks:
            return self.steps(rows, positions).at(context + positions)
        parts = microbatches(self.layout, rows, positions, chunks)
        return float(self._iteration_s(parts, context + positions))

    def linear_s(self, tokens: int) -> float:
        """Return the time of everything in all layers but attention, for so many tokens of all groups."""
        of_group, dense = self._of_group(tokens), self.model.num_dense_layers
        sparse = self.model.num_layers - dense
        return dense * self._dense_s(of_group) + (sparse * self._sparse_s(of_group, tokens) if sparse else 0.0)

    def head_s(self, rows: int) -> float:
        """Return the time of the output layer for so many positions, of all groups, at which a token is chosen."""
        return self._tables["head"].at(self._of_group(rows))

    def rows_s(self, rows: int, positions: int) -> Floats:
        """Return the time of a layer's attention of steps, at each of the priced contexts."""
        found = self._rows.get((rows, positions))
        if found is None:
            calls = [self._attention.of_step(rows, positions, context) for context in _CONTEXTS]
            works, first = [call.work for call in calls], calls[0]
            times = kernel_times(works, first.family, WIDE, self.node.device, self.profile, first.name)
            [beside_s] = self._clock.times_s([self._attention.around_step(rows * positions)])
            found = self._rows[rows, positions] = times.alone_s + beside_s
        return found

    def chunk_s(self, chunk: Chunk) -> float:
        """Return the time of a layer's attention of a chunk to its own tokens and those before it."""
        computed = -(-chunk.computed // _CONTEXT_STEP) * _CONTEXT_STEP
        if computed not in self._chunks:
            self._chunks[computed] = PriceTable(self._clock, partial(self._attention.of_prompt, computed=computed))
        return self._chunks[computed].at(-(-chunk.tokens // _TOKENS_STEP) * _TOKENS_STEP, _TOKENS_STEP)

    def layer_s(self, tokens: int) -> float:
        """Return the time of a layer without its attention, in the mean over layers."""
        return self.linear_s(tokens) / self.model.num_layers

    def square_s(self, rows: int) -> float:
        """Return the time of a product with a square matrix of the hidden size, which a group's ranks all do whole."""
        return self._tables["square"].at(self._of_group(rows))

    def _of_group(self, number: int) -> int:
        """Return the part of so many tokens that the fullest group has."""
        return -(-number // self.layout.expert_degree)

    def _iteration_s(self, parts: Sequence[Microbatch], seen: Seconds) -> Seconds:
        """Return the time of an iteration of these micro-batches, one for each number of tokens that steps see."""
        times = [self._layer_times(part, seen) for part in parts]
        hosts_s = [self.software.iteration_s + self.software.sequence_s * part.num_sequences for part in parts]
        if len(self.stages) == 1:
            return times[0].of(self.stages[0]) + hosts_s[0]
        width = self.model.hidden_size * 2
        sent_s = [self.messages.through_stages_s(part.tokens * width, part.tokens) for part in parts]
        return cycle_s([[of.of(stage) for stage in self.stages] for of in times], hosts_s, sent_s)

    def _layer_times(self, part: Microbatch, seen: Seconds) -> _LayerTimes:
        """Return the times of a micro-batch's layers."""
        prompts_s = max(sum(map(self.chunk_s, chunks)) for chunks in part.chunks)
        sparse = self.model.experts is not None
        return _LayerTimes(
            self._dense_s(part.tokens) + prompts_s,
            self._sparse_s(part.tokens, part.all_tokens) + prompts_s if sparse else 0.0,
            np.interp(seen, self._contexts, self.rows_s(part.rows, part.positions)) if part.rows else 0.0,
            self._tables["head"].at(part.chosen),
        )

    def _dense_s(self, tokens: int) -> float:
        """Return the time of a layer with an MLP, attention left out."""
        number, step = _rounded(tokens)
        return self._tables["common"].at(number, step) + self._tables["mlp"].at(number, step)

    def _sparse_s(self, tokens: int, all_tokens: int) -> float:
        """Return the time of a layer of experts, attention left out. ``all_tokens``: of all groups."""
        (number, step), (everywhere, wide_step) = _rounded(tokens), _rounded(all_tokens)
        beside_s = self._tables["common"].at(number, step) + self._tables["beside_experts"].at(number, step)
        return beside_s + self._tables["experts"].at(everywhere, wide_step)

    def _sums_s(self, tokens: int) -> float:
        """Return the time of the sums over a group's ranks after attention and after the MLP or the experts."""
        return 2.0 * self.messages.in_group_s(
            "all_reduce", TensorSpec((tokens, self.model.hidden_size), WIDE).num_bytes
        )

    def _gathered_s(self, rows: int) -> float:
        """Return the time in which a group's ranks gather the output layer's results."""
        degree = self.layout.tensor_degree
        return self.messages.in_group_s("all_gather", rows * degree * 2 * -(-self.model.vocab_size // degree))

    def _exchanges_s(self, tokens: int) -> float:
        """Return the time in which tokens go to the experts that they choose, and come back.

        They go in the type of the experts' operands, and come back in 16 bits (DeepSeek-AI 2024, DeepSeek-V3, section
        3.3.3).
        """
        assert self.model.experts is not None, "only layers of experts exchange tokens"
        shape, top_k = (tokens, self.model.hidden_size), self.model.experts.top_k
        sizes = [TensorSpec(shape, dtype).num_bytes for dtype in (self.weight_dtype, WIDE)]
        return sum(self.messages.exchange_s(num_bytes, top_k) for num_bytes in sizes)


def cycle_s(times_s: Sequence[Sequence[Seconds]], hosts_s: Sequence[float], sent_s: Sequence[float]) -> Seconds:
    """Return the time of an iteration in a cycle of equal ones, in which stages work on micro-batches in turn.

    ``times_s``: of every micro-batch in every stage. ``hosts_s``: the host's time before each; ``sent_s``: messages.
    A micro-batch goes through all stages before it begins again, and a stage, or the host, has one at a time. The
    longest of these sums is the period where stages are equal, and a lower bound else. An iteration after idle time
    takes longer, as the pipeline fills.
    """
    found: Seconds = sum(hosts_s)
    for stages_s, host_s, message_s in zip(times_s, hosts_s, sent_s, strict=True):
        found = np.maximum(found, sum(stages_s) + (host_s + message_s))
    for of_stage_s in zip(*times_s, strict=True):
        found = np.maximum(found, sum(of_stage_s))
    return found


def _rounded(tokens: int) -> tuple[int, int]:
    """Return the number of tokens at which products are priced, and the distance to the next one."""
    step = 1 if tokens <= _EXACT_TOKENS else _TOKENS_STEP
    return -(-tokens // step) * step, step


@lru_cache(maxsize=64)
def kernel_cost(
    *,
    model: ServedModel,
    node: NodeSpec,
    profile: Profile,
    layout: ReplicaLayout,
    weight_dtype: str,
    cache_dtype: str,
    software: ServingSoftware,
) -> KernelCost:
    """Return the prices of a model on a replica: the same object for the same numbers, which remembers its prices."""
    return KernelCost(
        model=model,
        node=node,
        profile=profile,
        layout=layout,
        weight_dtype=weight_dtype,
        cache_dtype=cache_dtype,
        software=software,
    )
