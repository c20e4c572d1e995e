"""What to train and how: the typed, checked input of the builders.

Each class checks itself; ``DenseTraining`` checks what concerns several of them together.
Every error names the scenario key that the user must change.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from sim.training.errors import MicrobatchError, SpecError
from sim.training.pipeline.deferral import check_deferral, check_segments, deferred_part
from sim.training.pipeline.evaluate import StageTimes
from sim.training.pipeline.rules import SLICES_KEY, check_times
from sim.training.pipeline.spec import PipelineSpec as PipelineSpec
from sim.training.pipeline.spec import Recompute, check_schedule
from sim.training.spec.context import ContextMethod, check_chunks, check_context
from sim.training.spec.expert_rules import (
    check_expert_degree,
    check_expert_techniques,
    check_shared_out,
)
from sim.training.spec.mesh_axes import AXIS_ORDER, mesh_axes
from sim.training.spec.method import LocalUpdate as LocalUpdate
from sim.training.spec.method import Method as Method
from sim.training.spec.method import check_auxiliary, check_blocks, check_delay, check_method
from sim.training.spec.model import TransformerSpec
from sim.training.spec.precision import PRECISIONS, PrecisionTypes, check_casts
from sim.training.spec.sharding import OsdpSpec as OsdpSpec
from sim.training.spec.sharding import ShardingSpec as ShardingSpec
from sim.training.spec.sharding import check_parameter_gather, check_sharding
from sim.training.tensor.method import TensorMethod
from sim.training.tensor.one_dimensional import OneDimensional

Precision = Literal["fp8", "fp16", "bf16", "fp32", "fp64"]
Optimizer = Literal["adam", "sgd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySpec:
    """A textbook workload: per stage and micro-batch, stated times and nothing else.

    A virtual stage takes its share of a stage's times. ``hop_s`` is added to every dependency between ranks.
    ``gradient_sync_s``: to synchronise all gradients of a rank with its replicas. ``auxiliary_s``: local updates' heads
    of a stage, forward and backward.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    hop_s: float = 0.0
    gradient_sync_s: float = 0.0
    auxiliary_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """Batch, numbers and optimizer."""

    global_batch_size: int
    microbatch_size: int
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    checkpoint_early_stop: bool = False
    """Recomputation ends where backward needs no more, as torch's does; else it runs to the end, as Megatron-LM's."""
    optimizer: Optimizer = "adam"
    """``sgd``: plain, without momentum."""
    learning_rate: float = 1e-3
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    fused_gradient_accumulation: bool = True
    """Weight-gradient products add to the accumulated gradient themselves; else a second kernel does."""
    gradient_placeholders: bool = False
    """Where gradients are accumulated so, backward still hands autograd tensors of the weights' shapes."""
    low_precision_gradients: bool = False
    """Accumulate and synchronise gradients in the type of the weights, not in 32 bits."""
    set_gradients_to_none: bool = False
    """No gradient is cleared before a step: the first backward that would add to one assigns it."""
    whole_embedding_gradient: bool = False
    """Backward makes the gradient of the whole embedding, and a second kernel adds it, as under autograd."""
    prescale_gradients: bool = False
    """Gradients are means over replicas, each divided before they are summed; else the loss is divided."""
    check_gradients: bool = False
    """The squares of all gradients are summed before these are, to find out whether one is no number."""
    method: Method = "backprop"
    local_update: LocalUpdate | None = None
    """Local updates: whether a block also learns from the next one's loss. None: left out, which is greedy."""

    def __post_init__(self) -> None:
        if self.gradient_placeholders and not self.fused_gradient_accumulation:
            raise SpecError(
                "training.gradient_placeholders",
                "placeholders stand for gradients that products have added themselves; here a second kernel adds them",
                "leave it out, or fused_gradient_accumulation: true",
            )
        if self.set_gradients_to_none and self.types.gradient != self.types.parameter:
            raise SpecError(
                "training.set_gradients_to_none",
                f"a gradient that backward assigns has its weight's type, {self.types.parameter}, and here it is "
                f"accumulated in {self.types.gradient}",
                "leave it out, or low_precision_gradients: true",
            )

    @property
    def update(self) -> LocalUpdate:
        """Return the kind of local updates."""
        return self.local_update or "greedy"

    @property
    def types(self) -> PrecisionTypes:
        """Return the element types of this precision."""
        types = PRECISIONS[self.precision]
        return replace(types, gradient=types.parameter) if self.low_precision_gradients else types


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """How the work lies over the mesh. ``axis_order``: last varies fastest over ranks."""

    tensor: TensorMethod = field(default_factory=OneDimensional)
    context_degree: int = 1
    """Ranks that share every sequence."""
    context_method: ContextMethod = "p2p"
    pipeline: PipelineSpec = field(default_factory=PipelineSpec)
    data_degree: int = 1
    expert_degree: int = 1
    """Data-parallel ranks that share out the experts."""
    zero_stage: int = 0
    sharding: ShardingSpec = field(default_factory=ShardingSpec)
    osdp: OsdpSpec | None = None
    """Sharding by operator, in the place of a ZeRO stage."""
    overlap_gradient_sync: bool = True
    overlap_parameter_gather: bool = False
    """ZeRO 1: what a step updates is gathered under the next step's forwards."""
    deferred_sync: float | None = None
    """aiao: part of the gradients of all but a rank's first stage that is synchronised in the next step's forwards.

    None: in proportion to the time of forwards and backwards, which only prices can say; a plan needs the number.
    """
    bucket_bytes: int = 0
    """Gradients are synchronised in buckets of at least this many bytes; 0: one bucket per virtual stage, in ZeRO 2 at
    least 5e8 elements.
    """
    axis_order: tuple[str, ...] = AXIS_ORDER

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return prod(degree for _, degree in self.mesh_axes)

    @property
    def mesh_axes(self) -> tuple[tuple[str, int], ...]:
        """Return names and degrees of the mesh's axes, in order; that of context parallelism only where it is used."""
        return mesh_axes(
            self.axis_order, pipeline=self.pipeline.degree, data=self.data_degree, context=self.context_degree,
            tensor=self.tensor.axes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTraining:
    """A whole dense-training job: model, training and strategy, checked together."""

    model: TransformerSpec
    training: TrainingSpec
    parallel: ParallelSpec
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch(self.training, self.parallel)
        self._check_tensor()
        check_latent(self.model, self.parallel)
        check_token_slices(self.model, self.parallel)
        self._check_context()
        check_method(self.training.method, self.training.local_update, self.parallel.pipeline)
        parallel = self.parallel
        check_blocks(
            self.training.method,
            tied_embeddings=self.model.tied_embeddings,
            zero_stage=parallel.zero_stage,
            sharded_operators=parallel.osdp is not None,
        )
        check_deferral(parallel.pipeline.schedule, parallel.deferred_sync, overlaps=parallel.overlap_gradient_sync)
        if parallel.pipeline.schedule == "aiao":
            check_segments(
                parallel.zero_stage,
                parallel.deferred_sync,
                parallel.bucket_bytes,
                overlaps=parallel.overlap_gradient_sync,
                by_operator=parallel.osdp is not None,
            )
        check_delay(
            parallel.pipeline,
            tied_embeddings=self.model.tied_embeddings,
            zero_stage=parallel.zero_stage,
            sharded_operators=parallel.osdp is not None,
        )
        check_sharding(
            parallel.zero_stage, parallel.data_degree, parallel.sharding, parallel.pipeline, osdp=parallel.osdp,
            bucket_bytes=parallel.bucket_bytes, overlaps=parallel.overlap_gradient_sync,
        )  # fmt: skip
        if parallel.overlap_parameter_gather:
            check_parameter_gather(parallel.zero_stage, parallel.pipeline)
        if self.training.set_gradients_to_none:
            check_whole_gradients(parallel)
        check_gradient_passes(self.training, parallel)
        check_casts(
            self.training.types,
            parallel.zero_stage,
            by_operator=parallel.osdp is not None,
            is_delayed=bool(parallel.pipeline.gradient_delay),
        )
        self._check_experts()
        try:
            check_schedule(self.num_microbatches, self.parallel.pipeline)
        except MicrobatchError as error:
            per_round = self.training.microbatch_size * self.parallel.data_degree
            raise error.naming("training.global_batch_size", error.num_valid * per_round) from error
        split_layers(self.model.num_layers, self.parallel.pipeline)
        _check_recompute(self.training, self.parallel.pipeline)

    def _check_experts(self) -> None:
        parallel, training = self.parallel, self.training
        check_expert_degree(self.model, parallel.expert_degree, parallel.data_degree)
        check_expert_techniques(
            self.model, parallel.pipeline, is_local=training.method == "local", by_operator=parallel.osdp is not None,
            casts=training.types.casts,
        )  # fmt: skip
        check_shared_out(parallel.expert_degree, parallel.zero_stage, parallel.pipeline)

    def _check_tensor(self) -> None:
        """Raise SpecError where the tensor-parallel method does not divide what it cuts, and for what is not built."""
        parallel = self.parallel
        sizes = {**self.model.sizes, "training.microbatch_size": self.training.microbatch_size}
        parallel.tensor.check(sizes, scatters=parallel.pipeline.scatter_gather)
        if isinstance(parallel.tensor, OneDimensional) and parallel.tensor.collective_matmul:
            _check_collective_matmul(parallel)

    def _check_context(self) -> None:
        """Raise SpecError where sequences do not divide over the ranks that share them, or that is not built."""
        parallel = self.parallel
        if parallel.context_degree > 1:
            check_context(
                self.model, parallel.pipeline, parallel.axis_order,
                zero_stage=parallel.zero_stage, by_operator=parallel.osdp is not None,
            )  # fmt: skip
            check_chunks(self.model.sequence_length, parallel.context_degree, slice_multiple(parallel))

    @property
    def gradient_scale(self) -> float:
        """Return by what a rank multiplies its gradients, and the loss, before they are summed over replicas."""
        parallel = self.parallel
        return 1.0 / (parallel.data_degree * parallel.context_degree) if self.training.prescale_gradients else 1.0

    def recompute_of(self, stage: int) -> Recompute:
        """Return what a virtual stage of the model computes again in its backward."""
        per_stage = self.parallel.pipeline.recompute_per_stage
        return per_stage[stage] if per_stage else self.training.recompute

    @property
    def num_microbatches(self) -> int:
        """Return the micro-batches per data-parallel replica and step."""
        return self.training.global_batch_size // (self.training.microbatch_size * self.parallel.data_degree)

    @property
    def model_flop(self) -> float:
        """Return the FLOP that a step needs, over all replicas, counted as ``TransformerSpec.model_flop`` counts them.

        Of experts those count that a rank's tokens reach where choices are spread evenly: no slot that stays empty.
        Local updates also need a head per block. With overlapping ones the blocks between first and last also need,
        for their input, the gradient of their own loss alone: half of what products need backward, all of attention's.
        """
        model, batch = self.model, self.training.global_batch_size
        routed = self.training.microbatch_size * model.sequence_length // self.parallel.context_degree
        flop = model.model_flop(batch, model.experts.reached(routed) if model.experts else None)
        if self.training.method == "backprop":
            return flop
        layers, tokens = split_layers(model.num_layers, self.parallel.pipeline), batch * model.sequence_length
        flop += (len(layers) - 1) * 6.0 * tokens * model.hidden_size * model.vocab_size
        if self.training.update == "overlapping":
            flop += (
                sum(layers[1:-1])
                * tokens
                * (2.0 * model.layer_products + 4.0 * model.sequence_length * model.score_products)
            )
        return flop


def check_batch(training: TrainingSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError unless micro-batches over replicas make up the global batch."""
    per_round = training.microbatch_size * parallel.data_degree
    if training.global_batch_size % per_round:
        raise SpecError(
            "training.global_batch_size",
            f"{training.global_batch_size} does not divide by microbatch_size x data degree = "
            f"{training.microbatch_size} x {parallel.data_degree} = {per_round}",
            f"choose a multiple of {per_round}, e.g. {-(-training.global_batch_size // per_round) * per_round}",
        )


def check_whole_gradients(parallel: ParallelSpec) -> None:
    """Raise SpecError where gradients are added up in shards, which stay and are cleared."""
    if parallel.osdp is None and parallel.zero_stage < 2:
        return
    how = "osdp" if parallel.osdp is not None else f"zero_stage {parallel.zero_stage}"
    raise SpecError(
        "training.set_gradients_to_none",
        f"{how} adds gradients up in shards that are there from step to step",
        "leave it out, or write zero_stage: 1",
    )


def check_gradient_passes(training: TrainingSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError where gradients are not summed at the end of a step alone, all at once, which passes are for."""
    key = next((key for key in ("prescale_gradients", "check_gradients") if getattr(training, key)), None)
    if key is None:
        return
    schedule = parallel.pipeline.schedule
    wrong = {
        "osdp": parallel.osdp is not None,
        f"zero_stage {parallel.zero_stage}": parallel.zero_stage > 1,
        f"schedule {schedule}": schedule == "aiao" or bool(parallel.pipeline.gradient_delay),
        "method local": training.method == "local",
        "overlap_gradient_sync": parallel.overlap_gradient_sync,
    }
    how = next((name for name, is_wrong in wrong.items() if is_wrong), None)
    if how is not None:
        rule = f"passes over the gradients are built for the end of a step, where nothing else runs, not for {how}"
        remedy = "leave it out" if how != "overlap_gradient_sync" else "leave it out, or overlap_gradient_sync: false"
        raise SpecError(f"training.{key}", rule, remedy)


def _check_collective_matmul(parallel: ParallelSpec) -> None:
    """Raise SpecError for what is not built with products in pieces."""
    if parallel.osdp is not None:
        rule = "it is not built with osdp, which may cut the weights of products into slices"
        raise SpecError("parallel.tensor.collective_matmul", rule, "leave it, or osdp, out")


def check_latent(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError for what is not built with latent attention."""
    if model.latent_attention is not None and parallel.osdp is not None:
        raise SpecError(
            "parallel.data.osdp",
            "osdp is not built with latent_attention: it knows one projection to queries, keys and values",
            "leave it out, or write zero_stage: 3",
        )


def slice_multiple(parallel: ParallelSpec) -> int:
    """Return what the lengths of slices must be multiples of: tokens that tensor-parallel ranks share out."""
    return parallel.tensor.token_multiple(scatters=parallel.pipeline.scatter_gather)


def check_token_slices(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError unless the slices make up a sequence, and each divides over the ranks that share it."""
    slices, multiple = parallel.pipeline.token_slices, slice_multiple(parallel)
    if slices and sum(slices) != model.sequence_length:
        raise SpecError(
            SLICES_KEY,
            f"the slices have {sum(slices)} tokens in all, and a sequence {model.sequence_length}",
            f"write lengths that add up to {model.sequence_length}, or a number of slices",
        )
    odd = next((tokens for tokens in slices if tokens % multiple), None)
    if odd is not None:
        raise SpecError(
            SLICES_KEY,
            f"a slice of {odd} tokens does not divide over {multiple} tensor-parallel ranks",
            f"write lengths that are multiples of {multiple}",
        )


def _check_recompute(training: TrainingSpec, pipeline: PipelineSpec) -> None:
    """Raise SpecError where some stages are named, but not all, and for an option without effect."""
    given, stages = len(pipeline.recompute_per_stage), pipeline.num_virtual_stages
    if given not in {0, stages}:
        raise SpecError(
            "parallel.pipeline.recompute_per_stage",
            f"{given} stages are named, where there are {stages} virtual stages",
            f"list {stages} of none, selective, full",
        )
    if training.checkpoint_early_stop and {*(pipeline.recompute_per_stage or (training.recompute,))} == {"none"}:
        raise SpecError(
            "training.checkpoint_early_stop",
            "it says where recomputation stops, and nothing is recomputed",
            "leave it out, or write training.recompute: full",
        )


def split_layers(num_layers: int, pipeline: PipelineSpec) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in model order.

    Evenly where it divides; else, where it divides with embedding and head counted as a layer each, so
    (Megatron-core's account_for_embedding_in_pipeline_split, Llama 3's 126 layers on 16 stages, or on 128, of which the
    ends have none); else
    the remainder goes one layer each to the earliest stages after the first.
    """
    stages = pipeline.num_virtual_stages
    if pipeline.layers_per_stage:
        given = pipeline.layers_per_stage
        empty = next((stage for stage, num in enumerate(given) if num < 1), None)
        if empty is not None:
            raise SpecError(
                "parallel.pipeline.layers_per_stage",
                f"every virtual stage has 1 layer or more, number {empty} of the list is {given[empty]}",
                f"list {stages} numbers of 1 or more that add up to {num_layers}",
            )
        if len(given) != stages or sum(given) != num_layers:
            raise SpecError(
                "parallel.pipeline.layers_per_stage",
                f"{len(given)} stages with {sum(given)} layers in all, "
                f"where {stages} virtual stages must hold {num_layers} layers",
                f"list {stages} numbers that add up to {num_layers}",
            )
        return given
    if num_layers < stages and num_layers + 2 != stages:
        raise SpecError(
            "parallel.pipeline.degree",
            f"{num_layers} layers cannot fill {stages} virtual stages "
            f"(degree {pipeline.degree} x virtual_stages {pipeline.virtual_stages})",
            "choose a smaller degree or fewer virtual stages",
        )
    base, rest = divmod(num_layers, stages)
    if rest and (num_layers + 2) % stages == 0:
        inner = (num_layers + 2) // stages
        return (inner - 1, *[inner] * (stages - 2), inner - 1)
    extra = {(1 + i) % stages for i in range(rest)}
    return tuple(base + (i in extra) for i in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookTraining:
    """A schedule with stated times, on no particular hardware.

    ``overlap_gradient_sync``: a virtual stage's gradients are synchronised once its last backward has ended; else all
    of them after the rank's last backward. ``deferred_sync``, of 0 to 1: the part of the gradients of all virtual
    stages but a rank's first whose synchronisation aiao leaves to the next step's forwards; None: in
    proportion to the time of forwards and backwards.
    """

    model: DelaySpec
    num_microbatches: int
    pipeline: PipelineSpec
    overlap_gradient_sync: bool = True
    deferred_sync: float | None = None
    seed: int = 0
    method: Method = "backprop"
    local_update: LocalUpdate | None = None

    def __post_init__(self) -> None:
        check_method(self.method, self.local_update, self.pipeline)
        if self.pipeline.awaits_slices:
            rule = f"{self.pipeline.schedule} runs slices of tokens; none are stated, and a textbook has no prices"
            raise SpecError(SLICES_KEY, rule, "write token_slices: 4, or a list of lengths")
        check_auxiliary(self.method, self.model.auxiliary_s)
        try:
            check_schedule(self.num_microbatches, self.pipeline)
        except MicrobatchError as error:
            raise error.naming("training.num_microbatches", error.num_valid) from error
        check_times(self.pipeline.schedule, self.times)
        check_deferral(self.pipeline.schedule, self.deferred_sync, overlaps=self.overlap_gradient_sync)
        self._check_sync()

    @property
    def update(self) -> LocalUpdate:
        """Return the kind of local updates."""
        return self.local_update or "greedy"

    @property
    def deferred_part(self) -> float:
        """Return the part of a deferred stage's gradients that is synchronised in the next step."""
        if self.pipeline.schedule != "aiao" or not self.overlap_gradient_sync:
            return 0.0
        if self.deferred_sync is not None:
            return self.deferred_sync
        return deferred_part(self.times.forward_s, self.times.input_s + self.times.weight_s)

    @property
    def times(self) -> StageTimes:
        """Return what one virtual stage takes."""
        model, share = self.model, self.pipeline.virtual_stages
        return StageTimes(
            model.forward_s / share, model.backward_input_s / share, model.backward_weight_s / share, model.hop_s
        )

    @property
    def auxiliary_s(self) -> float:
        """Return what the head of one virtual stage takes."""
        return self.model.auxiliary_s / self.pipeline.virtual_stages

    def _check_sync(self) -> None:
        if self.model.gradient_sync_s and self.pipeline.num_copies > 1:
            raise SpecError(
                "model.gradient_sync",
                f"{self.pipeline.schedule} also sums the gradients of its two copies, for which there is no time",
                "leave it out, or choose another schedule",
            )
