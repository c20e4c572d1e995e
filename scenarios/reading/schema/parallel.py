"""How the work lies over the ranks."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from scenarios.reading.quantities import Bytes, Degree, FractionOrAuto, SwitchOrAuto
from scenarios.reading.schema.layer_ranges import LayerRanges
from scenarios.reading.schema.values import MAX_TOKENS, MAX_WORLD_SIZE, MicrobatchCount
from scenarios.reading.sections.markers import Checked, Parsed, RefusalError
from scenarios.reading.sections.section import Section
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import Recompute
from sim.training.sequence.method import SequenceLayout
from sim.training.sequence.registry import SequenceMethodName
from sim.training.spec.parallelism.sharding import GradientSync, Offload
from sim.training.tensor.method import DepthSync, Overlap
from sim.training.tensor.registry import TensorMethodName

MAX_PIECES: Final = 10_000
MAX_SIDE: Final = 1000

Axis = Literal["pp", "dp", "cp", "tp"]
MeshAxis = Literal["depth", "row", "column", "output", "input", "weight"]
_NAMED_ALWAYS: Final = frozenset({"pp", "dp", "tp"})


def _each_once(axes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(axes)) != len(axes) or not _NAMED_ALWAYS.issubset(axes):
        rule = f"every mesh axis belongs here once, got {', '.join(axes)}"
        raise RefusalError(rule, "list pp, dp and tp once each, and cp where it has a degree")
    return axes


def _stated_slices(value: object) -> object:
    if isinstance(value, list):
        value = tuple(value)
    if _is_count(value):
        return value
    if isinstance(value, tuple) and 0 < len(value) <= MAX_PIECES and all(_is_count(item) for item in value):
        return value
    raise RefusalError("slices are a number of 1 or more, or lengths in tokens", "write 4, or [704, 688, 656]")


def _slices(value: object) -> object:
    return value if value == "auto" else _stated_slices(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS


_STATED_SLICES: Final = [
    {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}, "minItems": 1},
]
StatedSlices = Annotated[Any, Parsed(_stated_slices, {"anyOf": _STATED_SLICES})]
TokenSlices = Annotated[Any, Parsed(_slices, {"anyOf": [*_STATED_SLICES, {"const": "auto"}]})]


class TensorSection(Section):
    """Tensor parallelism."""

    method: TensorMethodName = "1d"
    """`1d`: Megatron-LM's column and row split. In blocks: `2d` (Optimus), `2.5d` (Tesseract), `3d` (Colossal-AI)."""
    degree: Degree = 1
    mesh: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_SIDE)], ...], Meta(max_length=3)] = ()
    """Ranks along each side, [q, q] of 2d, [q, q, d] of 2.5d, [p, p, p] of 3d; the degree is their product."""
    axis_order: Annotated[tuple[MeshAxis, ...], Meta(max_length=3)] = ()
    """Axes of the mesh, the last of which varies fastest over ranks; default as the method's paper has them."""
    node_block: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_SIDE)], ...], Meta(max_length=3)] = ()
    """Sides of the blocks of the mesh whose ranks follow each other, as [2, 2] of 2d on nodes of four devices."""
    overlap: Overlap = "none"
    """2d, 2.5d: broadcasts and sums of blocks hold up computing (`none`), or go on beside it (`prefetch`)."""
    depth_sync: DepthSync = "per_backward"
    """2.5d: sum gradients over the squares' copies of weights in every backward, or once a step (`per_step`)."""
    save_gathered: bool = True
    """3d: keep gathered inputs and weights for backward; false: gather them again."""
    sequence_parallel: SwitchOrAuto = False
    """Split the sequence over the tensor-parallel ranks outside the matrix products; `auto`: where they can share it.

    That is where there are several, and their number divides the tokens of every task.
    """
    overlap_backward: bool = True
    """Communicate a product's input gradient while its weight gradient is computed; false: afterwards."""
    collective_matmul: bool = False
    """sequence_parallel: gather inputs and scatter sums in pieces, each beside the products of the others."""
    distribute_saved_activations: bool = False
    """1d, recompute full: of every layer's input a rank keeps its part; backward gathers it."""


class ContextSection(Section):
    """Context parallelism: ranks share a sequence, and attention exchanges what it needs."""

    degree: Degree = 1
    method: SequenceMethodName = "p2p"
    """`p2p`: keys and values go around a ring while attention is computed; `all_gather`: all are gathered before it.

    `ulysses`: tokens are exchanged for heads before attention, and back after it.
    `ring_self_attention`: keys, then values go around a ring, and scores are kept. `two_level`: `ulysses` among
    `inner_degree` neighbours, `p2p` among their groups.
    """
    layout: SequenceLayout = "zigzag"
    """p2p, all_gather, two_level: two chunks of a sequence per rank, which share out the causal mask, or one block."""
    inner_degree: Annotated[int, Meta(ge=2, le=MAX_WORLD_SIZE)] = 2
    """two_level: neighbours that share out the heads; divides the degree."""


class PipelineSection(Section):
    """Pipeline parallelism."""

    degree: Degree = 1
    schedule: Schedule = "1f1b"
    virtual_stages: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Stages per rank; 2 or more with interleaved_1f1b, 2 with zb_v and dualpipe_v."""
    microbatch_group_size: MicrobatchCount | None = None
    """interleaved_1f1b: micro-batches that run through a stage before the rank's next one; default as Megatron-LM."""
    max_live_microbatches: MicrobatchCount | None = None
    """zb_auto: micro-batches that a rank may keep; default the degree."""
    kept_for_weights: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """zb_auto: the part of a micro-batch's memory that stays until its weight part has run; default 1, all."""
    actions: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """custom: a CSV of actions, a row per rank, as torch writes it; the path is relative to the scenario file."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps (default, but with aiao); false: each goes on when it can."""
    layers_per_stage: Annotated[tuple[Annotated[int, Meta(ge=1, le=10_000)], ...], Meta(max_length=10_000)] = ()
    """Layers of every virtual stage in model order; default as evenly as Megatron-LM would."""
    recompute_per_stage: Annotated[tuple[Recompute, ...], Meta(max_length=10_000)] = ()
    """Recomputation of every virtual stage, in model order; default training.recompute."""
    token_slices: TokenSlices = None
    """terapipe, seq_1f1b: how many slices a sequence has, their lengths, or `auto`: the fastest (default)."""
    slice_granularity: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    """token_slices auto: lengths are multiples of this many tokens; default 1/128 of the sequence, or a little more."""
    blocking_messages: bool = False
    """gpipe, terapipe: a message holds up the computing of both its ranks, as a broadcast in a group of two does."""
    overlap_exchanges: bool = False
    """dualpipe, dualpipe_v, custom: a forward and a backward that overlap take turns between experts' exchanges."""
    scatter_gather: bool = False
    """Send 1/t of a replicated boundary tensor per tensor-parallel rank, gather on arrival."""


class DelayPipelineSection(Section):
    """Pipeline parallelism of a textbook workload."""

    degree: Annotated[int, Meta(ge=1, le=10_000)] = 1
    schedule: Schedule = "1f1b"
    virtual_stages: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Stages per rank; 2 or more with interleaved_1f1b, 2 with zb_v and dualpipe_v."""
    microbatch_group_size: MicrobatchCount | None = None
    """interleaved_1f1b: micro-batches that run through a stage before the rank's next one; default as Megatron-LM."""
    max_live_microbatches: MicrobatchCount | None = None
    """zb_auto: micro-batches that a rank may keep; default the degree."""
    kept_for_weights: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """zb_auto: the part of a micro-batch's memory that stays until its weight part has run; default 1, all."""
    actions: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """custom: a CSV of actions, a row per rank, as torch writes it; the path is relative to the scenario file."""
    token_slices: StatedSlices = None
    """terapipe, seq_1f1b: a number of slices of a sequence, or their lengths, of which only the ratios count."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps (default, but with aiao); false: each goes on when it can."""


class ExpertParallelSection(Section):
    """Expert parallelism."""

    degree: Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)] = 1
    """Data-parallel ranks that share out the experts, and exchange tokens; divides data.degree."""
    nodes: Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)] = 1
    """Nodes on which these ranks lie: a token is sent once to each, and handed on there; 1: to each of its experts."""


class OsdpSection(Section):
    """Sharding operator by operator: no more than memory asks for (OSDP)."""

    memory_limit: Bytes | None = None
    """Memory limit of a rank; default the memory of the device."""
    splits: Annotated[tuple[Annotated[int, Meta(ge=1, le=1000)], ...], Meta(min_length=1, max_length=16)] = (1,)
    """Numbers of slices that a linear layer may be split into along its input, where that divides."""
    gap: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """By which part of the least time the chosen one may be longer, to choose sooner."""
    layers: LayerRanges | None = None
    """Instead of a choice: the layers whose operators are sharded, as [0, 4-7]."""
    ends: bool | None = None
    """With layers: shard the embedding and the head as well; default false."""


class DataSection(Section):
    """Data parallelism."""

    degree: Degree = 1
    zero_stage: Annotated[int, Meta(ge=0, le=3)] = 0
    """ZeRO: replicas keep shards of 0: nothing, 1: the optimizer state, 2: gradients too, 3: parameters too (FSDP)."""
    shard_degree: Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)] | None = None
    """zero_stage 2, 3: replicas that share one set of shards (HSDP, MiCS); default all."""
    local_degree: Annotated[int, Meta(ge=2, le=MAX_WORLD_SIZE)] | None = None
    """zero_stage 3: neighbours among those; gather between them and others like them first, then inside (MiCS)."""
    gradient_sync: GradientSync | None = None
    """zero_stage 2, 3, osdp: shard gradients after every micro-batch (default), or once a step (no_sync)."""
    prefetch: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    """zero_stage 3, osdp: units gathered ahead of the one that computes; default 1."""
    reshard_after_forward: bool | None = None
    """zero_stage 3: free gathered parameters after forward (default); false: keep them until backward."""
    offload: Offload | None = None
    """zero_stage 2: `optimizer` keeps gradients, master weights and moments on the host, and updates there."""
    delayed_update: bool = False
    """offload: the host updates with a step's gradients during the next step, whose parameters still lack them."""
    osdp: OsdpSection | None = None
    """Instead of a zero_stage: shard only as many operators as memory needs, those that cost the least time."""
    overlap_gradient_sync: bool = True
    """Synchronise gradients while the backward pass still runs."""
    overlap_parameter_gather: bool = False
    """zero_stage 1: gather updated parameters during the next step's forwards."""
    deferred_sync: FractionOrAuto = "auto"
    """aiao: part of the gradients of all but a rank's first stage that is synchronised in the next step's forwards."""
    bucket: Bytes | None = None
    """Gradients are synchronised in buckets of this size; default one per virtual stage, in ZeRO 2 of 5e8 numbers."""


class ParallelSection(Section):
    """How the work lies over the ranks."""

    tensor: TensorSection = TensorSection()
    context: ContextSection = ContextSection()
    pipeline: PipelineSection = PipelineSection()
    data: DataSection = DataSection()
    expert: ExpertParallelSection = ExpertParallelSection()
    axis_order: Annotated[
        tuple[Axis, ...], Checked(_each_once, {"minItems": 3, "maxItems": 4, "uniqueItems": True})
    ] = ("pp", "dp", "cp", "tp")
    """Mesh axes; the last varies fastest over ranks."""


class DelayDataSection(Section):
    """Data parallelism of a textbook workload, whose cost is model.gradient_sync."""

    overlap_gradient_sync: bool = True
    """Synchronise a stage's gradients while other stages' backward passes still run."""
    deferred_sync: FractionOrAuto = "auto"
    """aiao: part of the gradients of all but a rank's first stage that is synchronised in the next step's forwards."""


class DelayParallelSection(Section):
    """How a textbook workload lies over the ranks."""

    pipeline: DelayPipelineSection = DelayPipelineSection()
    data: DelayDataSection = DelayDataSection()
