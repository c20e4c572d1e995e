"""Training jobs: typed, checked input.

A scenario states a job. Where the job leaves something to prices it is an ``OpenTraining``; deciding it gives a
``DenseTraining``, and builders take only that. Every error names the scenario key that the user must change.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from sim.moe.routing import Routing, RoutingShape
from sim.training.errors import MicrobatchError, SpecError
from sim.training.pipeline.deferral import check_deferral
from sim.training.pipeline.rules import SLICES_KEY
from sim.training.pipeline.spec import PipelineSpec as PipelineSpec
from sim.training.pipeline.spec import Recompute, check_schedule
from sim.training.spec.combinations import check_combinations
from sim.training.spec.method import LocalUpdate as LocalUpdate
from sim.training.spec.method import Method as Method
from sim.training.spec.method import check_method
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.openings import Opening, opening_of
from sim.training.spec.parallelism.context import check_shared_sequences
from sim.training.spec.parallelism.expert_rules import (
    check_biases,
    check_expert_degree,
    check_expert_nodes,
    check_overlapped_exchanges,
    check_replicas,
    check_sources,
)
from sim.training.spec.parallelism.parallel import ParallelSpec as ParallelSpec
from sim.training.spec.parallelism.shard_rules import check_options, check_payloads, check_shard_degrees
from sim.training.spec.parallelism.sharding import Choice
from sim.training.spec.parallelism.sharding import OsdpSpec as OsdpSpec
from sim.training.spec.parallelism.sharding import ShardingSpec as ShardingSpec
from sim.training.spec.parallelism.stage_layers import split_layers as split_layers
from sim.training.spec.techniques import Strategy
from sim.training.spec.textbook import DelaySpec as DelaySpec
from sim.training.spec.textbook import TextbookTraining as TextbookTraining
from sim.training.spec.training import Optimizer as Optimizer
from sim.training.spec.training import Precision as Precision
from sim.training.spec.training import TrainingSpec as TrainingSpec


class TrainingJob(Struct, frozen=True, kw_only=True):
    """Model, training and strategy of a dense-training job, checked together."""

    model: TransformerSpec
    training: TrainingSpec
    parallel: ParallelSpec
    seed: int = 0

    def __post_init__(self) -> None:
        model, training, parallel = self.model, self.training, self.parallel
        check_batch(training, parallel)
        sizes = {**model.sizes, "training.microbatch_size": training.microbatch_size}
        parallel.tensor.check(sizes, scatters=parallel.pipeline.scatter_gather)
        check_token_slices(model, parallel)
        check_method(training.method, training.local_update, parallel.pipeline)
        check_deferral(parallel.pipeline.schedule, parallel.deferred_sync, overlaps=parallel.overlap_gradient_sync)
        check_options(parallel)
        check_payloads(training, parallel, self.num_microbatches)
        check_expert_degree(model, parallel.expert_degree, parallel.data_degree)
        check_expert_nodes(model, parallel)
        check_biases(model, parallel)
        check_overlapped_exchanges(parallel)
        check_replicas(model, parallel, keeps_gradients=not training.set_gradients_to_none)
        _ = self.routing  # whose errors are those of the job
        check_combinations(Strategy(model, training, parallel))
        check_shared_sequences(model, parallel)
        check_shard_degrees(parallel)
        try:
            check_schedule(self.num_microbatches, parallel.pipeline)
        except MicrobatchError as error:
            per_round = training.microbatch_size * parallel.data_degree
            raise error.naming("training.global_batch_size", error.num_valid * per_round) from error
        layers = split_layers(model.num_layers, parallel.pipeline)
        _check_recompute(training, parallel)
        _check_recomputed_layers(training, parallel.pipeline, layers)
        _check_named_layers(model, training, parallel.pipeline)

    @property
    def gradient_scale(self) -> float:
        """Return the factor on a rank's gradients, and on the loss, before they are summed over replicas."""
        return 1.0 / self.parallel.num_replicas if self.training.prescale_gradients else 1.0

    def recompute_of(self, stage: int) -> Recompute:
        """Return the recomputation of a virtual stage of the model."""
        per_stage = self.parallel.pipeline.recompute_per_stage
        return per_stage[stage] if per_stage else self.training.recompute

    @property
    def num_microbatches(self) -> int:
        """Return the micro-batches per data-parallel replica and step."""
        return self.training.global_batch_size // (self.training.microbatch_size * self.parallel.data_degree)

    @property
    def _tokens_of_microbatch(self) -> int:
        """Return the tokens of a micro-batch that are routed on one rank."""
        return self.training.microbatch_size * self.model.sequence_length // self.parallel.context_degree

    @property
    def routing(self) -> Routing | None:
        """Return the routing of experts that is forced on the step, None where there is none.

        Its sources are the ranks that share out experts, in order, or all data-parallel ranks; all others route like
        these. Raises SpecError for a routing of another shape.
        """
        experts = self.model.experts
        routing = None if experts is None else experts.forced(self._routing_shape(experts))
        if routing is not None:
            check_sources(routing.num_sources, self.parallel.expert_degree, self.parallel.data_degree)
        return routing

    def routing_later(self, steps: int) -> Routing:
        """Return the routing that is forced on the step so many steps later. Raises SpecError as ``routing``."""
        experts = self.model.experts
        assert experts is not None
        found = experts.later(steps).forced(self._routing_shape(experts))
        assert found is not None, "no routing is forced"
        return found

    def _routing_shape(self, experts: ExpertsSpec) -> RoutingShape:
        return RoutingShape(
            num_layers=self.model.num_expert_layers, num_sources=self.parallel.expert_degree,
            num_experts=experts.num_experts, num_tokens=self._tokens_of_microbatch, top_k=experts.top_k,
        )  # fmt: skip

    @property
    def kept_fraction(self) -> float:
        """Return the part of all choices of experts that are not dropped, of a forced or an even routing; 1: all."""
        experts = self.model.experts
        return 1.0 if experts is None else experts.reached(self._tokens_of_microbatch, self.routing) / experts.top_k

    @property
    def model_flop(self) -> float:
        """Return the FLOP that the model needs per step, over all replicas (``TransformerSpec.model_flop``).

        For experts only tokens in slots count, with choices as they are forced, else spread evenly; empty slots do not.
        Local updates also need a head per block. With overlapping updates the blocks between first and last need a
        further input gradient, of their own loss alone: half of the products' backward FLOP and all of attention's.
        """
        model, batch = self.model, self.training.global_batch_size
        routed = self._tokens_of_microbatch
        flop = model.model_flop(batch, model.experts.reached(routed, self.routing) if model.experts else None)
        if self.training.method == "backprop":
            return flop
        layers, tokens = split_layers(model.num_layers, self.parallel.pipeline), batch * model.sequence_length
        flop += (len(layers) - 1) * 6.0 * tokens * model.hidden_size * model.vocab_size
        if self.training.update == "overlapping":
            between = range(layers[0], sum(layers[:-1]))
            products = 2.0 * len(between) * model.layer_products
            flop += tokens * (products + 4.0 * model.seen_keys(between) * model.score_products)
        return flop


class OpenTraining(TrainingJob, frozen=True, kw_only=True):
    """A job that leaves one decision to prices; builders know no prices."""

    def __post_init__(self) -> None:
        TrainingJob.__post_init__(self)
        if opening_of(self.parallel) is None:
            raise ValueError("an open job leaves something to prices, and this one leaves nothing")

    @property
    def opening(self) -> Opening:
        """Return the open decision."""
        opening = opening_of(self.parallel)
        assert opening is not None
        return opening

    def decided(self, parallel: ParallelSpec) -> "DenseTraining":
        """Return the job with its strategy completed. Raises SpecError if the strategy is still open."""
        return DenseTraining(model=self.model, training=self.training, parallel=parallel, seed=self.seed)


class DenseTraining(TrainingJob, frozen=True, kw_only=True):
    """A decided job, the input of builders: it states everything that its plan depends on."""

    def __post_init__(self) -> None:
        TrainingJob.__post_init__(self)
        opening = opening_of(self.parallel)
        if opening is not None:
            rule = "a plan needs it decided, and it is left to prices"
            raise SpecError(opening.value, rule, "state it, or decide the job first")

    def at_step(self, step: int) -> "DenseTraining":
        """Return the job of a later step, counted from this one: where experts move, their routing goes on."""
        experts = self.model.experts
        if experts is None or experts.moving is None:
            return self
        return replace(self, model=replace(self.model, experts=experts.later(step)))

    @property
    def deferred_part(self) -> float:
        """Return the part of a segment's sums over replicas that aiao leaves to the next step."""
        return self.parallel.deferred_sync or 0.0

    @property
    def operator_choices(self) -> dict[str, Choice]:
        """Return OSDP's choices by operator; empty without OSDP, or with one replica."""
        osdp = self.parallel.osdp
        return {} if osdp is None or self.parallel.data_degree == 1 else dict(osdp.choices or ())


def stated_training(
    *, model: TransformerSpec, training: TrainingSpec, parallel: ParallelSpec, seed: int = 0
) -> OpenTraining | DenseTraining:
    """Return the job that a scenario states: open where it leaves something to prices, else decided."""
    make = DenseTraining if opening_of(parallel) is None else OpenTraining
    return make(model=model, training=training, parallel=parallel, seed=seed)


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


def check_token_slices(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError unless the slices make up a sequence, and each divides over the ranks that share it."""
    slices, multiple = parallel.pipeline.token_slices, parallel.token_multiple
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


def _check_recompute(training: TrainingSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError where some stages are named, but not all, and for an option without effect."""
    pipeline, option = parallel.pipeline, parallel.tensor.option_of_recomputation
    recomputed = {*(pipeline.recompute_per_stage or (training.recompute,))}
    given, stages = len(pipeline.recompute_per_stage), pipeline.num_virtual_stages
    if given not in {0, stages}:
        raise SpecError(
            "parallel.pipeline.recompute_per_stage",
            f"{given} stages are named, where there are {stages} virtual stages",
            f"list {stages} of none, selective, full",
        )
    if option and "full" not in recomputed:
        rule = "it shares out what layers keep that are recomputed whole, and none is"
        raise SpecError(f"parallel.tensor.{option}", rule, "leave it out, or write training.recompute: full")
    if training.checkpoint_early_stop and recomputed == {"none"}:
        raise SpecError(
            "training.checkpoint_early_stop",
            "it changes the end of recomputation, and nothing is recomputed",
            "leave it out, or write training.recompute: full",
        )


def _check_named_layers(model: TransformerSpec, training: TrainingSpec, pipeline: PipelineSpec) -> None:
    """Raise SpecError for recomputed layers that the model has not, or whose stages say otherwise."""
    key, named = "training.recompute_layers", training.recompute_layers
    if named is None:
        return
    if training.recompute != "full" or pipeline.recompute_per_stage:
        per_stage = "parallel.pipeline.recompute_per_stage says it for every stage"
        rule = f"it names whole layers, and {per_stage if pipeline.recompute_per_stage else 'recompute is '}"
        rule += "" if pipeline.recompute_per_stage else training.recompute
        raise SpecError(key, rule, "leave it out, or write training.recompute: full without recompute_per_stage")
    if named and max(named) >= model.num_layers:
        rule = f"layer {max(named)} is named, and the model has layers 0 to {model.num_layers - 1}"
        raise SpecError(key, rule, "name layers of the model")


def _check_recomputed_layers(training: TrainingSpec, pipeline: PipelineSpec, layers: Sequence[int]) -> None:
    """Raise SpecError for a number of recomputed layers where no stage recomputes any, or none has as many."""
    key, wanted = "training.recompute_num_layers", training.recompute_num_layers
    if wanted is None:
        return
    modes = pipeline.recompute_per_stage or (training.recompute,) * len(layers)
    most = max((num for num, mode in zip(layers, modes, strict=True) if mode == "full"), default=0)
    if "full" not in modes:
        rule = f"it counts whole layers that are computed again, and recompute is {' or '.join(dict.fromkeys(modes))}"
        raise SpecError(key, rule, "leave it out, or write training.recompute: full")
    if not 1 <= wanted <= most:
        rule = f"of a virtual stage 1 to {most} layers can be recomputed, not {wanted}"
        raise SpecError(key, rule, f"write 1 to {most}, or leave it out to recompute all of them")
