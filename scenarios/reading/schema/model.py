"""The model: its family and sizes, or where they are to be read."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from scenarios.reading.quantities import Duration, DurationOrZero
from scenarios.reading.schema.values import MAX_TOKENS, Probability
from scenarios.reading.sections.markers import OneOf
from scenarios.reading.sections.section import Section
from sim.moe.balancing.placement_policy import DEFAULT_STEPS, PlacementPolicy, StepInFull, StepTimesBy
from sim.moe.dense_to_sparse import Decay
from sim.training.gates.gate import BIAS_UPDATE_RATE, REMOTE_SHARE, CapacityRule, RoutingWord
from sim.training.gates.registry import ExpertGate
from sim.training.spec.models.experts import Dispatch, DispatchPrecision, Permutation, RankLoad

Layers = Annotated[int, Meta(ge=1, le=10_000)]
LayersOrZero = Annotated[int, Meta(ge=0, le=10_000)]
Width = Annotated[int, Meta(ge=1, le=1_000_000)]
WidthOrZero = Annotated[int, Meta(ge=0, le=1_000_000)]
Heads = Annotated[int, Meta(ge=1, le=100_000)]
SequenceLength = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Vocabulary = Annotated[int, Meta(ge=2, le=100_000_000)]
NumExperts = Annotated[int, Meta(ge=2, le=100_000)]
Groups = Annotated[int, Meta(ge=1, le=100_000)]
TopK = Annotated[int, Meta(ge=1, le=100_000)]
CapacityFactor = Annotated[float, Meta(gt=0, le=10_000)]
BalanceLoss = Annotated[float, Meta(ge=0, le=1_000)]
BiasUpdateRate = Annotated[float, Meta(ge=0, le=1)]
Temperature = Annotated[float, Meta(ge=0.001, le=1_000)]
RotaryBase = Annotated[float, Meta(gt=1, le=1e12)]
HeadSize = Annotated[int, Meta(ge=1, le=100_000)]
GlobalEvery = Annotated[int, Meta(ge=2, le=10_000)]
Cap = Annotated[float, Meta(ge=0, le=1e6)]
Gate = Literal["silu", "gelu"]
Attention = Literal["core", "flash"]


class LatentAttentionSection(Section):
    """Multi-head latent attention, as DeepSeek-V2 has it: keys and values compressed to one vector per token."""

    kv_rank: Width
    """Width of the compressed keys and values."""
    head_size: Width
    """Channels of a head's query and key that positions do not turn."""
    rotary_head_size: Width
    """Channels beside these that positions turn; those of the key are shared by all heads."""
    value_head_size: Width
    """Channels of a head's value and output."""
    q_rank: Width | None = None
    """Width of the compressed queries; left out: queries are projected from the hidden state."""


class SlidingWindowSection(Section):
    """Layers whose queries see so many keys at most: their own and those before it."""

    size: SequenceLength
    """Keys that a query sees at most."""
    global_every: GlobalEvery | None = None
    """The last of so many layers in a row sees the whole sequence; left out: none does."""
    rotary_base: RotaryBase | None = None
    """Rotary base of the layers with a window; default that of the model."""


class SkewSection(Section):
    """Drawn shares of the experts: skewed by popularity, fluctuating and drifting from step to step."""

    zipf: Annotated[float, Meta(ge=0, le=10)] = 1.26
    """The expert of rank r in popularity gets a share in proportion to r^-zipf; 0: all the same."""
    fluctuation: Annotated[float, Meta(ge=0, le=10)] = 0.3
    """Standard deviation of the logarithm of a share around this law, from step to step."""
    memory_steps: Annotated[float, Meta(ge=1, le=1e9)] = 200.0
    """Steps in which a fluctuation is forgotten."""
    swap_probability: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Probability, per step and layer, that two experts next to each other in popularity change places."""
    concentration: Annotated[float, Meta(gt=0, le=1e9)] | None = 100.0
    """How closely ranks follow the common shares (Dirichlet); 50 to 200 for data that differ between ranks."""
    layer_correlation: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """0: every layer has popular experts of its own; 1: all have the same."""


class DenseToSparseSection(Section):
    """The gate `dense_to_sparse`: how its temperature falls, and the step at which it is taken."""

    start: Temperature = 1.0
    """Temperature of the first step."""
    end: Temperature = 0.5
    """Temperature after decay_steps, where it stays."""
    decay: Decay = "exponential"
    """`exponential`: by equal factors; `linear`: by equal differences."""
    decay_steps: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10_000
    """Steps in which the temperature falls from start to end."""
    hard_after: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """From this step on the best expert alone is active; left out: never."""
    step: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """The step that is simulated, from 0."""
    score_deviation: Annotated[float, Meta(ge=0, le=100)] = 1.0
    """Standard deviation of a token's scores, from which the number of active experts follows."""


class PlacementSection(Section):
    """Experts that move: copies of them come and go from step to step."""

    policy: PlacementPolicy = "flexmoe"
    """`flexmoe`: more copies of busy experts, by an estimate of a layer's time; `fastermoe`: all ranks get the hottest
    experts for a step.
    """
    steps: Annotated[int, Meta(ge=1, le=1_000)] = DEFAULT_STEPS
    """Steps from the first, without copies, to the one that is reported."""
    slots: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """vExperts that a rank has room for; default twice its even part of the experts."""
    threshold: Annotated[float, Meta(ge=1, le=1_000)] = 1.2
    """Largest over mean load of the ranks, from which experts move."""
    every: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Steps from one look at a layer's loads to the next; layers take turns."""
    step_times: StepTimesBy = "engine"
    """`engine`: each step is simulated from a plan of its own; `sums`: as a sum of calls, one by the engine too.
    """
    in_full: StepInFull = "last"
    """The step that is simulated in full beside sums; of the `first`, one rank stands for the busiest."""


class RoutingSection(Section):
    """A routing that is forced on every micro-batch of the step: one of `skew`, `shares` and `trace`."""

    skew: SkewSection | None = None
    """Choices are drawn."""
    shares: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(max_length=100_000)] | None = None
    """The part of every rank's choices that falls on each expert."""
    trace: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """A recorded routing, CSV or Parquet; the path is relative to the scenario file."""
    step: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Which step of a skew or a trace is taken, from 0."""


def _form_of_routing(value: object) -> object:
    """Return the form in which a routing is written: a mapping, or a word."""
    return RoutingSection if isinstance(value, dict | RoutingSection) else RoutingWord


RoutingChoice = Annotated[RoutingSection | RoutingWord, OneOf(_form_of_routing)]


class ExpertsSection(Section):
    """Experts in the place of the MLP of a layer: a router sends every token to some of them."""

    num_experts: NumExperts
    top_k: TopK
    """Experts that a token goes to."""
    ffn_hidden_size: Width
    """Width of one expert."""
    shared_ffn_hidden_size: WidthOrZero = 0
    """Width of the experts that every token goes to; 0: there are none."""
    first_dense_layers: LayersOrZero = 0
    """So many first layers have an MLP, of width model.ffn_hidden_size, and no experts."""
    capacity_factor: CapacityFactor = 1.0
    """Slots of an expert for a rank's tokens, over its even share; num_experts / top_k and more drop no choice."""
    shared_gate: bool = False
    """What the shared experts add is weighed, token by token, by the sigmoid of a score."""
    routing: RoutingChoice = "learned"
    """`learned`: to the experts that the router scores highest; `balanced`: in turn, as benchmarks force it; a mapping:
    as often to each expert as it says.
    """
    gate: ExpertGate = "top_k"
    """`top_k`: the experts of the highest scores; `switch`: the one best; `gshard`: two, the second at random;
    `k_top_1`: the best of each of top_k groups; `group_limited`: of the best groups alone; `bias`: with a bias that
    evens out loads; `topology_aware`: mostly of the rank's own group; `sam`: of one group; `expert_choice`: experts
    choose tokens; `dense_to_sparse`: many experts at first, one in the end; `hash`: a fixed expert of each word;
    `base`: tokens are assigned to slots so that the scores add up to most.
    """
    dense_to_sparse: DenseToSparseSection | None = None
    """The schedule of the gate of this name."""
    num_groups: Groups = 1
    """group_limited, bias, topology_aware, sam: equal groups of experts, as those of a node."""
    top_groups: Groups = 1
    """group_limited and bias: groups that a token may choose from, those whose best scores add up to most."""
    bias_update_rate: BiasUpdateRate = BIAS_UPDATE_RATE
    """bias: how much a step adds to the bias of an expert with less than its share, or takes from the others."""
    remote_share: Probability = REMOTE_SHARE
    """topology_aware: the part of a rank's tokens that may choose an expert outside the rank's group."""
    capacity_rule: CapacityRule = "even_share"
    """How slots are counted: `even_share`, or as DeepSpeed, Tutel or HetuMoE do."""
    dispatch: Dispatch = "slots"
    """`slots`: every expert has a fixed number of slots; `exact`: a row per choice, and none is dropped."""
    dispatch_precision: DispatchPrecision = "own"
    """The type in which rows travel to experts: `own`, that of activations, or `fp8`, with a scale per row."""
    rank_load: RankLoad = "own"
    """`own`: every rank has the rows of its experts; `busiest`: all have the rows of the busiest, layer by layer, and
    one stands for all.
    """
    placement: PlacementSection | None = None
    """A policy that moves experts from step to step; left out: they stay."""
    permutation: Permutation = "indexed"
    """How tokens come into slots and back: rows are looked up, or `einsum`: products with one-hot masks."""
    balance_loss: BalanceLoss = 0.0
    """Coefficient of the auxiliary loss that keeps the experts of a layer equally busy."""


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
    causal: bool = True
    """A token sees only itself and those before it; false: all tokens of its sequence, as in BERT."""
    dropout: Probability = 0.1
    """Probability of every dropout; Megatron-LM's default is 0.1."""
    experts: ExpertsSection | None = None
    """In the place of the MLPs; without biases."""


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
    causal: bool = True
    """A token sees only itself and those before it; false: all tokens of its sequence, as in BERT."""
    dropout: Probability = 0.0
    """Llamas have none."""
    rotary_base: RotaryBase = 10000.0
    """Base of the rotary frequencies (theta)."""
    head_size: HeadSize | None = None
    """Width of a head; default hidden_size / num_heads."""
    qkv_bias: bool = False
    """Queries, keys and values have biases, as in Qwen 2."""
    query_key_norm: bool = False
    """Every head of queries and keys is normalised, as in Qwen 3 and Gemma 3."""
    gate: Gate = "silu"
    """What the MLP's gate goes through: `silu` (SwiGLU) or `gelu` (GeGLU, as in Gemma)."""
    post_norms: bool = False
    """The outputs of attention and MLP are normalised, too, as in Gemma 2 and 3."""
    scaled_embeddings: bool = False
    """Embedded tokens are multiplied by the root of hidden_size, as in Gemma."""
    sliding_window: SlidingWindowSection | None = None
    """Layers that see a part of the sequence; left out: all see all of it."""
    score_cap: Cap = 0.0
    """Attention scores are kept below it by a tanh, as in Gemma 2; 0: they are not. Needs `attention: core`."""
    logit_cap: Cap = 0.0
    """The logits are kept below it by a tanh; 0: they are not."""
    latent_attention: LatentAttentionSection | None = None
    """Queries, keys and values are made of compressed vectors; left out: of the hidden state."""
    experts: ExpertsSection | None = None
    """In the place of the MLPs."""


class LatentAttentionOverrides(Section):
    """Keys that are written over those of a model's latent attention; the others stay."""

    kv_rank: Width | None = None
    head_size: Width | None = None
    rotary_head_size: Width | None = None
    value_head_size: Width | None = None
    q_rank: Width | None = None


class ExpertsOverrides(Section):
    """Keys that are written over those of a model's experts; the others stay."""

    num_experts: NumExperts | None = None
    top_k: TopK | None = None
    ffn_hidden_size: Width | None = None
    shared_ffn_hidden_size: WidthOrZero | None = None
    first_dense_layers: LayersOrZero | None = None
    capacity_factor: CapacityFactor | None = None
    shared_gate: bool | None = None
    routing: RoutingChoice | None = None
    dispatch: Dispatch | None = None
    dispatch_precision: DispatchPrecision | None = None
    rank_load: RankLoad | None = None
    placement: PlacementSection | None = None
    permutation: Permutation | None = None
    gate: ExpertGate | None = None
    dense_to_sparse: DenseToSparseSection | None = None
    num_groups: Groups | None = None
    top_groups: Groups | None = None
    bias_update_rate: BiasUpdateRate | None = None
    remote_share: Probability | None = None
    capacity_rule: CapacityRule | None = None
    balance_loss: BalanceLoss | None = None


class SlidingWindowOverrides(Section):
    """Keys that are written over those of a model's sliding window; the others stay."""

    size: SequenceLength | None = None
    global_every: GlobalEvery | None = None
    rotary_base: RotaryBase | None = None


class _ModelOverrides(Section):
    """Keys that may be written over those of a preset or a Hugging Face configuration; sections key by key."""

    num_layers: Layers | None = None
    hidden_size: Width | None = None
    num_heads: Heads | None = None
    sequence_length: SequenceLength | None = None
    vocab_size: Vocabulary | None = None
    num_kv_heads: Heads | None = None
    ffn_hidden_size: Width | None = None
    tied_embeddings: bool | None = None
    attention: Attention | None = None
    causal: bool | None = None
    dropout: Probability | None = None
    rotary_base: RotaryBase | None = None
    head_size: HeadSize | None = None
    qkv_bias: bool | None = None
    query_key_norm: bool | None = None
    gate: Gate | None = None
    post_norms: bool | None = None
    scaled_embeddings: bool | None = None
    sliding_window: SlidingWindowOverrides | None = None
    score_cap: Cap | None = None
    logit_cap: Cap | None = None
    latent_attention: LatentAttentionOverrides | None = None
    experts: ExpertsOverrides | None = None


class PresetModel(_ModelOverrides):
    """A published model by name; further keys are written over the preset's."""

    preset: Annotated[str, Meta(min_length=1, max_length=200)]
    """Name of a preset; `simulate list` names them."""


class HuggingFaceModel(_ModelOverrides):
    """A model from a Hugging Face config.json; further keys are written over the file's."""

    huggingface: Annotated[str, Meta(min_length=1, max_length=4000)]
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


def _form_of_model(value: object) -> type[Section] | None:
    """Return the section of the kind of model that a mapping describes; None for no kind that is known."""
    if isinstance(value, Section):
        return type(value)
    if not isinstance(value, dict):
        return None
    kind = next((kind for kind in ("preset", "huggingface") if kind in value), value.get("family"))
    return MODEL_SECTIONS.get(kind) if isinstance(kind, str) else None


Model = Annotated[GptModel | LlamaModel | PresetModel | HuggingFaceModel, OneOf(_form_of_model)]
