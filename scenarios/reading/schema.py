"""What a scenario file may hold: keys, types, limits and defaults.

Types are strict: ``"8"``, ``8.0`` and ``true`` are not 8. Unknown keys are refused. Quantities with a dimension
are text with a unit. Rules between keys are checked where the keys' values are used, in the loader.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from scenarios.reading.quantities import (
    Bytes,
    Degree,
    Duration,
    DurationOrZero,
    FractionOrAuto,
    IntervalOrAuto,
    LongDuration,
    refusal,
)
from sim.training.method import LocalUpdate, Method
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import Recompute
from sim.training.sharding import GradientSync, Offload
from sim.training.spec import Optimizer

MAX_BATCH: Final = 1_000_000_000
MAX_MICROBATCHES: Final = 1_000_000
MAX_WORLD_SIZE: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
MAX_PIECES: Final = 10_000

Layers = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Heads = Annotated[int, Field(ge=1, le=100_000)]
SequenceLength = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Vocabulary = Annotated[int, Field(ge=2, le=100_000_000)]
Probability = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
RotaryBase = Annotated[float, Field(gt=1, le=1e12, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
MicrobatchCount = Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)]
Attention = Literal["core", "flash"]
Axis = Literal["pp", "dp", "tp"]
Factor = Annotated[float, Field(ge=0.1, le=100, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Word = Annotated[str, Field(min_length=1, max_length=100)]


def _each_once(axes: tuple[str, ...]) -> tuple[str, ...]:
    if sorted(axes) != ["dp", "pp", "tp"]:
        raise refusal(f"every mesh axis belongs here once, got {', '.join(axes)}", "list pp, dp and tp once each")
    return axes


class Section(BaseModel):
    """A mapping of a scenario file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )


def _name_or_mapping(value: object) -> object:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise refusal(
        "a topology is a name or a mapping", "write topology: superpod-h100, or keys below it (see docs/clusters.md)"
    )


def _number_or_name(value: object) -> object:
    if (isinstance(value, str) and value) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise refusal("a device is a number or a name", "write device: 17, or device: node 2 gpu 1")


def _stated_slices(value: object) -> object:
    if isinstance(value, list):
        value = tuple(value)
    if _is_count(value):
        return value
    if isinstance(value, tuple) and 0 < len(value) <= MAX_PIECES and all(_is_count(item) for item in value):
        return value
    raise refusal("slices are a number of 1 or more, or lengths in tokens", "write 4, or [704, 688, 656]")


def _slices(value: object) -> object:
    return value if value == "auto" else _stated_slices(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS


_STATED_SLICES: Final = [
    {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}, "minItems": 1},
]
StatedSlices = Annotated[Any, AfterValidator(_stated_slices), Field(json_schema_extra={"anyOf": _STATED_SLICES})]
TokenSlices = Annotated[
    Any, AfterValidator(_slices), Field(json_schema_extra={"anyOf": [*_STATED_SLICES, {"const": "auto"}]})
]


class StragglerSection(Section):
    """A device or a link that is slower than it should be."""

    device: Annotated[Any, AfterValidator(_number_or_name)] = Field(
        default=None, json_schema_extra={"type": ["integer", "string"]}
    )
    """Number or name of a device: `17`, `node 2 gpu 1`."""
    link: str | None = Field(default=None, min_length=1, max_length=200)
    """Name of a link, one direction: `node 3 nic 0 out`, `leaf 0 to spine 1`."""
    slowdown: float = Field(ge=1, le=1e6, allow_inf_nan=False)
    """How many times as long it takes."""


class JitterSection(Section):
    """How much devices of one type differ: by family of kernels, the standard deviation of the logarithm of times."""

    gemm: Spread = 0.0
    attention: Spread = 0.0
    """Fused attention, forward and backward."""
    elementwise: Spread = 0.0
    optimizer: Spread = 0.0


class AlgorithmSection(Section):
    """How each kind of collective is done; `auto`: what is fastest alone, as NCCL chooses."""

    all_reduce: Word = "auto"
    all_gather: Word = "auto"
    reduce_scatter: Word = "auto"
    broadcast: Word = "auto"
    reduce: Word = "auto"
    all_to_all: Word = "auto"
    barrier: Word = "auto"


class NetworkSection(Section):
    """How the network is used."""

    algorithm: AlgorithmSection = AlgorithmSection()


class SoftwareSection(Section):
    """What the framework adds to the times of the device and the network; default: nothing."""

    launch: DurationOrZero = 0.0
    """Host time per kernel that Python launches: forward, and recomputation."""
    native_launch: DurationOrZero | None = None
    """Host time per kernel that autograd launches, per collective or message of a forward or backward; default half."""
    task_launch: DurationOrZero = 0.0
    """Host time of every forward or backward of a micro-batch before its first kernel: the schedule, the next batch."""
    rank_skew: DurationOrZero = 0.0
    """Standard deviation of when the members of a collective come."""
    product_slowdown: Factor = 1.0
    """How many times as long matrix products take as under the profile."""
    unaligned_slowdown: Factor = 1.0
    """The same, beside product_slowdown, of products with a matrix whose rows are no multiple of 16 bytes."""
    memory_bound_slowdown: Factor = 1.0
    """How many times as long memory-bound kernels, but for the optimizer's, take as under the profile."""
    optimizer_slowdown: Factor = 1.0
    """How many times as long the optimizer's kernels take as under the profile."""
    step_spread: Spread = 0.0
    """Standard deviation of the logarithm of measured over predicted steps that the constants leave; for intervals."""
    fused_softmax: bool = True
    """`attention: core`: the scaled, masked softmax is one kernel; false: seven launches, and five in backward."""


class ClusterSection(Section):
    """The machine."""

    node: str | None = Field(default=None, min_length=1, max_length=200)
    """Node type of the hardware catalogue; `simulate list` names them. Needed where no topology says it."""
    num_nodes: int = Field(ge=1, le=1_000_000)
    """Number of nodes."""
    devices_per_node: int | None = Field(default=None, ge=1, le=10_000)
    """Devices used of every node; default all that it has."""
    profile: str | None = Field(default=None, min_length=1, max_length=4000)
    """File that `simulate calibrate` wrote, relative to the scenario; default the packaged profile of the devices."""
    topology: Annotated[Any, AfterValidator(_name_or_mapping)] = Field(
        default=None, json_schema_extra={"type": ["string", "object"]}
    )
    """Links of the cluster: a name of the topology catalogue, or a mapping; default one switch below all nodes."""
    stragglers: tuple[StragglerSection, ...] = Field(default=(), strict=False, max_length=10_000)
    """Devices and links that are slower than they should be."""
    jitter: JitterSection = JitterSection()


class GptModel(Section):
    """A GPT as Megatron-LM trains it: learned positions, layer norm, biases, GELU, dropout."""

    family: Literal["gpt"]
    num_layers: Layers
    hidden_size: Width
    num_heads: Heads
    sequence_length: SequenceLength
    vocab_size: Vocabulary
    """Rows of the embedding table, padding included."""
    num_kv_heads: Heads | None = None
    """Key and value heads; default num_heads."""
    ffn_hidden_size: Width | None = None
    """Width of the feed-forward layer; default 4 x hidden_size."""
    tied_embeddings: bool = True
    """Input embedding and output layer share one table."""
    attention: Attention = "core"
    """`core`: scores, softmax and context as separate kernels; `flash`: one fused kernel."""
    dropout: Probability = 0.1
    """Probability of every dropout; Megatron-LM's default is 0.1."""


class LlamaModel(Section):
    """A Llama: rotary positions, RMS norm, no biases, SwiGLU, grouped-query attention."""

    family: Literal["llama"]
    num_layers: Layers
    hidden_size: Width
    num_heads: Heads
    sequence_length: SequenceLength
    vocab_size: Vocabulary
    """Rows of the embedding table, padding included."""
    ffn_hidden_size: Width
    """Width of the gate and of the up projection."""
    num_kv_heads: Heads | None = None
    """Key and value heads; default num_heads."""
    tied_embeddings: bool = False
    """Input embedding and output layer share one table."""
    attention: Attention = "flash"
    """`core`: scores, softmax and context as separate kernels; `flash`: one fused kernel."""
    dropout: Probability = 0.0
    """Llamas have none."""
    rotary_base: RotaryBase = 10000.0
    """Base of the rotary frequencies (theta)."""


class _ModelOverrides(Section):
    """Keys that may be written over those of a preset or a Hugging Face configuration."""

    num_layers: Layers | None = None
    hidden_size: Width | None = None
    num_heads: Heads | None = None
    sequence_length: SequenceLength | None = None
    vocab_size: Vocabulary | None = None
    num_kv_heads: Heads | None = None
    ffn_hidden_size: Width | None = None
    tied_embeddings: bool | None = None
    attention: Attention | None = None
    dropout: Probability | None = None
    rotary_base: RotaryBase | None = None


class PresetModel(_ModelOverrides):
    """A published model by name; further keys are written over the preset's."""

    preset: str = Field(min_length=1, max_length=200)
    """Name of a preset; `simulate list` names them."""


class HuggingFaceModel(_ModelOverrides):
    """A model from a Hugging Face config.json; further keys are written over the file's."""

    huggingface: str = Field(min_length=1, max_length=4000)
    """Path of the config.json, relative to the scenario file."""


class DelayModel(Section):
    """A textbook workload: every stage takes the stated times. Times are per stage and micro-batch."""

    family: Literal["delay"]
    forward: Duration
    backward_input: Duration
    backward_weight: DurationOrZero
    hop: DurationOrZero = 0.0
    """Added to every dependency between ranks."""
    gradient_sync: DurationOrZero = 0.0
    """Time to synchronise all gradients of a rank with its replicas."""
    auxiliary: DurationOrZero = 0.0
    """method local: time of the auxiliary heads of a stage, forward and backward."""


MODEL_SECTIONS: Final[dict[str, type[Section]]] = {
    "gpt": GptModel,
    "llama": LlamaModel,
    "preset": PresetModel,
    "huggingface": HuggingFaceModel,
}


def model_kind(value: object) -> str:
    """Return which kind of model a mapping describes, empty if none that is known."""
    if not isinstance(value, dict):
        return "" if not isinstance(value, Section) else type(value).__name__.removesuffix("Model").lower()
    for kind in ("preset", "huggingface"):
        if kind in value:
            return kind
    family = value.get("family")
    return family if isinstance(family, str) and family in {"gpt", "llama"} else ""


Model = Annotated[
    Annotated[GptModel, Tag("gpt")]
    | Annotated[LlamaModel, Tag("llama")]
    | Annotated[PresetModel, Tag("preset")]
    | Annotated[HuggingFaceModel, Tag("huggingface")],
    Discriminator(model_kind),
]


class TrainingSection(Section):
    """Batch, numbers and optimizer of dense training."""

    global_batch_size: int = Field(ge=1, le=MAX_BATCH)
    """Sequences per optimizer step, over all replicas."""
    microbatch_size: int = Field(ge=1, le=1_000_000)
    """Sequences per micro-batch of one replica."""
    precision: Literal["fp8", "fp16", "bf16", "fp32", "fp64"] = "bf16"
    """Type of activations and weights; fp16 and bf16 keep fp32 master weights and gradients.

    fp8: as bf16, but the products of the layers take operands cast to eight bits, E4M3, gradients to E5M2.
    """
    recompute: Recompute = "none"
    """Activations computed again in the backward pass: none, attention's, or whole layers."""
    optimizer: Optimizer = "adam"
    """`sgd`: plain stochastic gradient descent, without momentum."""
    learning_rate: Positive = 1e-3
    adam_beta1: Probability = 0.9
    adam_beta2: Probability = 0.95
    adam_epsilon: Positive = 1e-8
    fused_gradient_accumulation: bool = True
    """Weight-gradient products add to the accumulated gradient themselves; false: a second kernel does."""
    gradient_placeholders: bool = False
    """Fused accumulation leaves autograd tensors in the gradients' places, as Transformer Engine and Megatron-LM do."""
    low_precision_gradients: bool = False
    """Accumulate and synchronise gradients in the type of the weights, not in fp32."""
    method: Method = "backprop"
    """`backprop` (default, but with schedule local), or `local`: blocks of layers with losses of their own."""
    local_update: LocalUpdate | None = None
    """method local: `greedy` (default), or `overlapping`: a block also learns from the next block's loss."""


class DelayTrainingSection(Section):
    """Training of a textbook workload."""

    num_microbatches: int = Field(ge=1, le=MAX_MICROBATCHES)
    """Micro-batches per step."""
    method: Method = "backprop"
    """`backprop` (default, but with schedule local), or `local`: blocks of layers with losses of their own."""
    local_update: LocalUpdate | None = None
    """method local: `greedy` (default), or `overlapping`: a block also learns from the next block's loss."""


class TensorSection(Section):
    """Tensor parallelism."""

    method: Literal["1d"] = "1d"
    """`1d`: Megatron-LM's column and row split."""
    degree: Degree = 1
    sequence_parallel: bool = False
    """Split the sequence over the tensor-parallel ranks outside the matrix products."""
    overlap_backward: bool = True
    """Communicate a product's input gradient while its weight gradient is computed; false: afterwards."""


class PipelineSection(Section):
    """Pipeline parallelism."""

    degree: Degree = 1
    schedule: Schedule = "1f1b"
    virtual_stages: int = Field(default=1, ge=1, le=10_000)
    """Stages per rank; 2 or more with interleaved_1f1b, 2 with zb_v and dualpipe_v."""
    microbatch_group_size: MicrobatchCount | None = None
    """interleaved_1f1b: micro-batches that run through a stage before the rank's next one; default as Megatron-LM."""
    max_live_microbatches: MicrobatchCount | None = None
    """zb_auto: micro-batches that a rank may keep; default the degree."""
    actions: str | None = Field(default=None, min_length=1, max_length=4000)
    """custom: a CSV of actions, a row per rank, as torch writes it; the path is relative to the scenario file."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps (default, but with aiao); false: each goes on when it can."""
    layers_per_stage: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(
        default=(), strict=False, max_length=10_000
    )
    """Layers of every virtual stage in model order; default as evenly as Megatron-LM would."""
    recompute_per_stage: tuple[Recompute, ...] = Field(default=(), strict=False, max_length=10_000)
    """What every virtual stage computes again, in model order; default what training.recompute says."""
    token_slices: TokenSlices = None
    """terapipe, seq_1f1b: how many slices a sequence has, their lengths, or `auto`: the fastest (default)."""
    slice_granularity: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """token_slices auto: lengths are multiples of this many tokens; default 1/128 of the sequence, or a little more."""
    blocking_messages: bool = False
    """gpipe, terapipe: a message holds up the computing of both its ranks, as a broadcast in a group of two does."""
    scatter_gather: bool = False
    """Send 1/t of a replicated boundary tensor per tensor-parallel rank, gather on arrival."""


class DelayPipelineSection(Section):
    """Pipeline parallelism of a textbook workload."""

    degree: int = Field(default=1, ge=1, le=10_000)
    schedule: Schedule = "1f1b"
    virtual_stages: int = Field(default=1, ge=1, le=10_000)
    """Stages per rank; 2 or more with interleaved_1f1b, 2 with zb_v and dualpipe_v."""
    microbatch_group_size: MicrobatchCount | None = None
    """interleaved_1f1b: micro-batches that run through a stage before the rank's next one; default as Megatron-LM."""
    max_live_microbatches: MicrobatchCount | None = None
    """zb_auto: micro-batches that a rank may keep; default the degree."""
    actions: str | None = Field(default=None, min_length=1, max_length=4000)
    """custom: a CSV of actions, a row per rank, as torch writes it; the path is relative to the scenario file."""
    token_slices: StatedSlices = None
    """terapipe, seq_1f1b: a number of slices of a sequence, or their lengths, of which only the ratios count."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps (default, but with aiao); false: each goes on when it can."""


class OsdpSection(Section):
    """Sharding operator by operator: no more than memory asks for (OSDP)."""

    memory_limit: Bytes | None = None
    """What a rank may use; default the memory of the device."""
    splits: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        default=(1,), strict=False, min_length=1, max_length=16
    )
    """Numbers of slices that a linear layer may be split into along its input, where that divides."""
    gap: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """By which part of the least time the chosen one may be longer, to choose sooner."""


class DataSection(Section):
    """Data parallelism."""

    degree: Degree = 1
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO: replicas keep shards of 0: nothing, 1: the optimizer state, 2: gradients too, 3: parameters too (FSDP)."""
    shard_degree: int | None = Field(default=None, ge=2, le=MAX_WORLD_SIZE)
    """zero_stage 2, 3: replicas that share one set of shards (HSDP, MiCS); default all."""
    local_degree: int | None = Field(default=None, ge=2, le=MAX_WORLD_SIZE)
    """zero_stage 3: neighbours among those; gather between them and others like them first, then inside (MiCS)."""
    gradient_sync: GradientSync | None = None
    """zero_stage 2, 3, osdp: shard gradients after every micro-batch (default), or once a step (no_sync)."""
    prefetch: int | None = Field(default=None, ge=0, le=10_000)
    """zero_stage 3, osdp: units gathered ahead of the one that computes; default 1."""
    reshard_after_forward: bool | None = None
    """zero_stage 3: free gathered parameters after forward (default); false: keep them until backward."""
    offload: Offload | None = None
    """zero_stage 2: `optimizer` keeps gradients, master weights and moments on the host, and updates there."""
    osdp: OsdpSection | None = None
    """In the place of a zero_stage: shard the operators that memory asks for, those that cost least time."""
    overlap_gradient_sync: bool = True
    """Synchronise gradients while the backward pass still runs."""
    overlap_parameter_gather: bool = False
    """zero_stage 1: gather what a step updates under the next step's forwards."""
    deferred_sync: FractionOrAuto = "auto"
    """aiao: part of the gradients of all but a rank's first stage that is synchronised in the next step's forwards."""
    bucket: Bytes | None = None
    """Gradients are synchronised in buckets of this size; default one per virtual stage, in ZeRO 2 of 5e8 numbers."""


class ParallelSection(Section):
    """How the work lies over the ranks."""

    tensor: TensorSection = TensorSection()
    pipeline: PipelineSection = PipelineSection()
    data: DataSection = DataSection()
    axis_order: Annotated[tuple[Axis, ...], AfterValidator(_each_once)] = Field(
        default=("pp", "dp", "tp"),
        strict=False,
        json_schema_extra={"minItems": 3, "maxItems": 3, "uniqueItems": True},
    )
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


class CheckpointSection(Section):
    """How the state of a long run is saved."""

    save: Duration
    """From the beginning of a save until it can be restarted from."""
    interval: IntervalOrAuto = "auto"
    """Training time between two saves; `auto`: the best. Rounded to whole steps."""
    stall: DurationOrZero | None = None
    """Asynchronous saving: how long training stands still for a save; default all of it."""


class SparesSection(Section):
    """Nodes that stand by."""

    num_nodes: int = Field(ge=0, le=1_000_000)
    """Number of nodes that wait to replace a failed one."""
    repair: LongDuration
    """From a node's failure until it stands by again."""


class ReliabilitySection(Section):
    """A long run of the training job on hardware that fails. At least one MTBF, and one of duration and steps."""

    mtbf_per_device: LongDuration | None = None
    """Mean time between failures of one device."""
    mtbf_per_nic: LongDuration | None = None
    """Mean time between failures of one network adapter."""
    mtbf_per_node: LongDuration | None = None
    """Mean time between failures of one node, its devices and adapters not counted."""
    mtbf_of_job: LongDuration | None = None
    """Mean time between interruptions that no node is to blame for: software, the network."""
    checkpoint: CheckpointSection
    restart: DurationOrZero
    """From a failure until training goes on: detection, rescheduling, loading."""
    duration: LongDuration | None = None
    """How long the job has the machine."""
    steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """How many training steps the job has to do."""
    spares: SparesSection | None = None
    """Default: a replacement is always at hand."""
    replications: int = Field(default=100, ge=2, le=10_000)
    """Runs that are simulated, each with failures of its own."""


class _ScenarioHead(Section):
    name: str = Field(min_length=1, max_length=200)
    """What to call this scenario in results."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of everything random."""


class DenseScenario(_ScenarioHead):
    """Dense training of a transformer on a cluster."""

    cluster: ClusterSection
    model: Model
    training: TrainingSection
    parallel: ParallelSection = ParallelSection()
    network: NetworkSection = NetworkSection()
    software: SoftwareSection = SoftwareSection()
    reliability: ReliabilitySection | None = None
    """A long run on hardware that fails; default: only a step is simulated."""


class DelayScenario(_ScenarioHead):
    """A textbook workload on ranks without hardware."""

    model: DelayModel
    training: DelayTrainingSection
    parallel: DelayParallelSection = DelayParallelSection()


def scenario_class(data: dict[str, Any]) -> type[DenseScenario] | type[DelayScenario]:
    """Return the schema that a file's values are to be checked against."""
    model = data.get("model")
    return DelayScenario if isinstance(model, dict) and model.get("family") == "delay" else DenseScenario


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a scenario file."""
    template = "#/$defs/{model}"
    dense = DenseScenario.model_json_schema(ref_template=template)
    delay = DelayScenario.model_json_schema(ref_template=template)
    definitions = {**dense.pop("$defs"), **delay.pop("$defs"), "DenseScenario": dense, "DelayScenario": delay}
    is_delay = {"properties": {"family": {"const": "delay"}}, "required": ["family"]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "meshtwin scenario",
        "type": "object",
        "if": {"properties": {"model": is_delay}, "required": ["model"]},
        "then": {"$ref": "#/$defs/DelayScenario"},
        "else": {"$ref": "#/$defs/DenseScenario"},
        "$defs": definitions,
    }
    return {key: _without_null(value) for key, value in schema.items()}


def _without_null(schema: Any) -> Any:
    """Return a JSON Schema that refuses null everywhere, as the loader does: leave a key out for its default."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if {"type": "null"} in result.get("anyOf", ()):
        kept = [option for option in result.pop("anyOf") if option != {"type": "null"}]
        result |= kept[0] if len(kept) == 1 else {"anyOf": kept}
    return result
