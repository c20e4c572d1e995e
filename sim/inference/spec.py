"""An inference job: a model, prompts, and how many tokens are to follow each of them."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.functions.cached_tokens import CachedTokens, Span
from sim.plan.words.buffer import E4M3
from sim.training.errors import SpecError
from sim.training.spec.job import ParallelSpec, split_layers
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.expert_rules import check_expert_degree
from sim.training.spec.precision import PRECISIONS, PrecisionTypes
from sim.training.spec.training import Precision
from sim.training.tensor.one_dimensional import OneDimensional

MOST_STEPS: Final = 10_000
"""The most passes of a plan, which writes every one of them."""
_PLAIN_GATES: Final = frozenset({"top_k", "switch", "k_top_1", "group_limited"})
"""Gates whose choices follow from a token's scores alone."""


class InferenceJob(Struct, frozen=True, kw_only=True):
    """Sequences of a model that are continued together: one pass over all prompts, then one pass per step of decoding.

    ``prompt_tokens``: of each sequence of a micro-batch. ``output_tokens``: that each sequence gets. The pass over the
    prompts gives the first, and every step ``tokens_per_step`` more. One token per step is the most likely one. More of
    them are a text that is given, as drafts are whose tokens are all accepted.
    ``num_microbatches``: batches of such sequences that are in flight, as stages of a pipeline need them.
    ``block_tokens``: slots of the caches are reserved in blocks of so many tokens.
    ``precision``: ``fp8`` keeps the weights of the layers' products in eight bits, and multiplies eight bits.
    ``cache_precision``: ``fp8`` keeps keys and values in eight bits, without a scale, and latents with one for 128
    numbers each; None: as activations.
    ``wide``: all that has more than eight bits has 64, for checks.
    """

    model: TransformerSpec
    parallel: ParallelSpec
    prompt_tokens: tuple[int, ...]
    output_tokens: int
    tokens_per_step: int = 1
    num_microbatches: int = 1
    precision: Precision = "bf16"
    cache_precision: Literal["fp8"] | None = None
    wide: bool = False
    block_tokens: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_lengths()
        _check_model(self.model)
        _check_parallel(self.parallel)
        self.parallel.tensor.check(self.model.sizes, scatters=False)
        check_expert_degree(self.model, self.parallel.expert_degree, self.parallel.data_degree)
        split_layers(self.model.num_layers, self.parallel.pipeline)

    def _check_lengths(self) -> None:
        steps, rest = divmod(self.output_tokens - 1, self.tokens_per_step)
        if rest:
            rule = (
                f"after the first of {self.output_tokens} tokens, steps of {self.tokens_per_step} do not make the rest"
            )
            remedy = f"write {1 + (steps + 1) * self.tokens_per_step}"
            raise SpecError("inference.output_tokens", rule, remedy)
        if steps > MOST_STEPS:
            rule = f"{steps:,} steps of decoding are more than {MOST_STEPS:,}"
            raise SpecError("inference.output_tokens", rule, "write fewer: a step hardly differs from the one before")
        longest, most = max(self.prompt_tokens) + self.output_tokens - 1, self.model.sequence_length
        if longest > most:
            rule = f"the longest sequence comes to {longest:,} tokens, and the model knows {most:,} positions"
            raise SpecError("inference.prompt_tokens", rule, "write fewer, or a longer model.sequence_length")

    @property
    def types(self) -> PrecisionTypes:
        """Return the element types."""
        types = PRECISIONS[self.precision]
        if not self.wide:
            return types
        product = types.product if types.casts else "float64"
        return PrecisionTypes("float64", "float64", "float64", "float64", mixed=False, product=product)

    @property
    def num_steps(self) -> int:
        """Return the number of steps of decoding, after the pass over the prompts."""
        return (self.output_tokens - 1) // self.tokens_per_step

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences of one replica."""
        return len(self.prompt_tokens) * self.num_microbatches

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the slots of each sequence of a micro-batch, in whole blocks."""
        size = self.block_tokens
        return tuple(-(-(tokens + self.output_tokens - 1) // size) * size for tokens in self.prompt_tokens)

    @property
    def passes(self) -> tuple[CachedTokens, ...]:
        """Return the new tokens of every pass: of the prompts, then of one step after the other."""
        first = [sum(self.slots[:index]) for index in range(len(self.slots))]
        starts = [(0, tokens) for tokens in self.prompt_tokens]
        found = [self._pass(0, first, starts)]
        for step in range(self.num_steps):
            starts = [(tokens + step * self.tokens_per_step, self.tokens_per_step) for tokens in self.prompt_tokens]
            found.append(self._pass(1 + step, first, starts))
        return tuple(found)

    def _pass(self, index: int, slots: list[int], tokens: list[tuple[int, int]]) -> CachedTokens:
        spans = tuple(Span(slot, start, count) for slot, (start, count) in zip(slots, tokens, strict=True))
        kernel: Literal["cached_attention", "decode_attention"] = "decode_attention" if index else "cached_attention"
        return CachedTokens(index, spans, sum(self.slots), kernel, E4M3 if self.cache_precision else "")


def inference_model(model: TransformerSpec) -> TransformerSpec:
    """Return a model as inference runs it: without dropout, its attention fused."""
    return replace(model, dropout=0.0, attention="flash")


def _check_model(model: TransformerSpec) -> None:
    """Raise SpecError for a model whose layers are not built with caches."""
    if not model.causal:
        raise SpecError("model.causal", "only causal models continue a text", "leave it out")
    if any(model.window_of(layer) for layer in range(model.num_layers)):
        rule = "attention to caches is built without a window"
        raise SpecError("model.sliding_window", rule, "write fewer tokens than the window has, or another model")
    if model.experts is not None:
        _check_experts(model.experts)


def _check_experts(experts: ExpertsSpec) -> None:
    """Raise SpecError for experts whose choices need more than a token's scores."""
    if experts.gate not in _PLAIN_GATES:
        rule = f"inference is built for gates that need scores alone, and this is {experts.gate}"
        raise SpecError("model.experts.gate", rule, f"write one of {', '.join(sorted(_PLAIN_GATES))}")
    if experts.dispatch != "slots" or experts.is_forced or experts.replicas is not None or experts.moving is not None:
        rule = "inference is built for experts with slots that tokens choose, each on one rank"
        raise SpecError("model.experts", rule, "leave out dispatch, routing and placement")


def _check_parallel(parallel: ParallelSpec) -> None:
    """Raise SpecError for techniques that only training has."""
    tensor = parallel.tensor
    if not isinstance(tensor, OneDimensional) or replace(tensor, degree=1) != OneDimensional():
        rule = "inference is built for tensor parallelism 1d without options"
        raise SpecError("parallel.tensor", rule, "write its degree alone")
    plain = ParallelSpec(
        tensor=tensor, pipeline=parallel.pipeline, data_degree=parallel.data_degree,
        expert_degree=parallel.expert_degree, axis_order=parallel.axis_order,
    )  # fmt: skip
    if parallel != plain or parallel.pipeline.virtual_stages > 1:
        rule = "inference is built for tensor, pipeline, expert and data parallelism, one stage per rank"
        raise SpecError("parallel", rule, "write degrees alone")
