"""The keys of a service's file."""

from typing import Annotated, Literal

from msgspec import Meta

from scenarios.reading.quantities import Duration, DurationOrZero, WholeBytesOrZero
from scenarios.reading.schema.cluster import ClusterSection
from scenarios.reading.schema.model import ExpertsSection, Model
from scenarios.reading.schema.values import ScenarioSection
from scenarios.reading.sections.section import Section, keys_of
from scenarios.workloads.unread import Unread
from sim.serving.batching import BatchingName
from sim.serving.prices.model import ServedExperts
from sim.serving.prices.software import ExpertMessages, FrameworkName
from sim.serving.routing import RouterName

Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
Variation = Annotated[float, Meta(ge=0, le=100)]


class RequestsSection(Section):
    """The requests: recorded ones, or drawn ones."""

    trace: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """File of recorded requests (Azure's CSV, Mooncake's JSON lines); relative to the scenario file."""
    num_requests: Annotated[int, Meta(ge=1, le=5_000_000)] | None = None
    """So many requests are drawn, 1,000 unless said; of a trace the first ones, or all."""
    rate: Rate | None = None
    """Requests per second in the mean; needed where no trace is named, else the trace is stretched to it."""
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """So many users, each of whom sends a request as soon as the one before has ended; in place of a rate."""
    burstiness: Variation = 1.0
    """Squared variation of the gaps between drawn arrivals: 1 is a Poisson process, 0 is regular."""
    prompt_tokens: Tokens = 1024
    """Mean length of drawn prompts."""
    prompt_variation: Variation = 0.0
    """Standard deviation of their length over the mean; log-normal."""
    output_tokens: Tokens = 256
    """Mean length of drawn answers."""
    output_variation: Variation = 0.0
    """Standard deviation of their length over the mean; log-normal."""


class SloSection(Section):
    """The service level objective: a request counts as good if it meets all limits that are stated."""

    ttft: Duration | None = None
    """Time to the first token, at most."""
    tpot: Duration | None = None
    """Time per output token after the first, at most."""
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Part of the requests that must meet the limits; the fewest replicas with which they do are then sought."""


class FailureSection(Section):
    """A replica that stops and loses its memory."""

    replica: Annotated[int, Meta(ge=0, le=1_000_000)]
    """Number of the replica, from 0."""
    at: DurationOrZero
    """Instant of the failure."""
    lasts: Duration
    """Time until the replica is up again."""


class ServiceSection(Section):
    """How the model is served."""

    tensor_degree: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Devices of a group, which share every layer by tensor parallelism; a replica has one group unless said."""
    pipeline_degree: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Stages of a replica, each with its part of the layers; the batch has a micro-batch for each."""
    expert_degree: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Groups of a stage, which decode sequences of their own and share out the experts."""
    replicas: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """Number of replicas; default as many as the cluster has room for, or as few as `slo.share` needs."""
    prompt_replicas: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """So many of the replicas compute prompts alone, and the others decode; left out: all do both."""
    precision: Literal["bf16", "fp8"] = "bf16"
    """Type of the weights."""
    cache_precision: Literal["bf16", "fp8"] = "bf16"
    """Type of keys and values in the cache."""
    batching: BatchingName = "prefill_first"
    """`prefill_first`: whole prompts before any decoding, as vLLM; `chunked`: pieces of prompts beside it, as
    Sarathi-Serve; `static`: a batch at a time.
    """
    max_sequences: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """Sequences in the batch of a replica, at most."""
    max_tokens: Tokens = 8192
    """Tokens of an iteration, at most; a longer prompt is computed alone, or in chunks."""
    block_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16
    """Tokens of a block of the cache of keys and values."""
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Part of a device's memory that the service takes."""
    activation_memory: WholeBytesOrZero = 2_000_000_000
    """Memory of a device for activations."""
    framework: FrameworkName | None = None
    """Framework whose measured overheads and collectives count where no key says otherwise."""
    overhead: DurationOrZero | None = None
    """Time of every iteration beside its kernels: scheduler, sampling, launches; default the framework's, or 0."""
    sequence_overhead: DurationOrZero | None = None
    """The same for each sequence in an iteration: its sampled token, its text, its message."""
    request_overhead: DurationOrZero | None = None
    """Time of every request before it reaches a replica's queue: its message and its tokenizer."""
    all_reduce_latency: Duration | None = None
    """Latency of the framework's own collectives within a node; left out without a framework: NCCL's alone."""
    expert_messages: ExpertMessages | None = None
    """With `expert_degree`: a token is sent to another node once for each expert that it chooses there (`choices`,
    default), or once (`nodes`).
    """
    router: RouterName = "round_robin"
    """Which replica a request goes to: `round_robin`, `random`, `least_outstanding`, or `prefix`, that which knows most
    of the prompt.
    """
    patience: Duration | None = None
    """A request that waits so long for its first token is cancelled; left out: none is."""
    failures: Annotated[tuple[FailureSection, ...], Meta(max_length=10_000)] = ()
    """Replicas that stop."""
    slo: SloSection = SloSection()


class DecodingSection(Section):
    """How answers are decoded: one token at a time, or by verifying drafts."""

    method: Literal[
        "autoregressive",
        "draft_model",
        "prompt_lookup",
        "jacobi",
        "lookahead",
        "medusa",
        "hydra",
        "clover",
        "clover2",
        "eagle",
    ] = "autoregressive"
    """`draft_model`, `prompt_lookup` and `jacobi` verify a chain of tokens, `lookahead` a chain and pieces beside it,
    the others a tree.
    """
    drafted: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Tokens that a pass verifies beside the one that is sure: the length of the chain, or the nodes of the tree;
    default 4.
    """
    tree: Literal["static", "by_confidence", "reranked"] = "static"
    """Trees: the same at every step, or shaped by the draft's probabilities as Clover's (`by_confidence`) and EAGLE-2's
    (`reranked`); the latter two need a recording.
    """
    acceptance: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Chains: probability that a drafted token is accepted, where those before it were."""
    hit_rates: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(max_length=64)] = ()
    """Trees: for each depth, the probability that the best guess is right where those before it were."""
    rank_ratio: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Trees: how often each further guess for a depth is right, over the guess before it."""
    recorded: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """Recording that gives `acceptance`, `hit_rates` or whole steps: `python_help` or `python_help_heads`, a small
    model on help pages, or a file; relative to the scenario file.
    """
    draft_pass: Duration | None = None
    """draft_model: time of a pass of the draft model."""


class ServiceScenarioFile(ScenarioSection):
    """A service of a model: requests come, wait, are computed in batches, and are answered token by token."""

    workload: Literal["service"]
    """The kind of work: a service."""
    cluster: ClusterSection
    model: Model
    requests: RequestsSection
    service: ServiceSection = ServiceSection()
    decoding: DecodingSection = DecodingSection()


_LENGTHS = "services take the lengths of sequences from requests"
_DRAWN = ("prompt_tokens", "prompt_variation", "output_tokens", "output_variation", "burstiness")
_NORMS = ("qkv_bias", "query_key_norm", "post_norms")
_ELEMENTWISE = ("rotary_base", "gate", "scaled_embeddings", "score_cap", "logit_cap")
_UNSERVED = tuple(key for key in keys_of(ExpertsSection) if key not in ServedExperts.__struct_fields__)

UNREAD = (
    Unread(("model.sequence_length",), _LENGTHS, beside="model.preset"),
    Unread(("model.sequence_length",), _LENGTHS, beside="model.huggingface"),
    Unread(("model.attention",), "services price fused attention to caches"),
    Unread(("model.dropout",), "services drop nothing out"),
    Unread(tuple(f"model.{key}" for key in (*_NORMS, *_ELEMENTWISE)), "services price no kernel that differs by it"),
    Unread(tuple(f"model.experts.{key}" for key in _UNSERVED), "all experts of a service get equally many tokens"),
    Unread(("cluster.device_price",), "services are not paid for"),
    Unread(tuple(f"requests.{key}" for key in _DRAWN), "the trace says it of every request", beside="requests.trace"),
)
"""Keys of sections that services share with trainings, and keys of drawn requests beside recorded ones."""
