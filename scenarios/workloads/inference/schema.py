"""The keys of a file of prompts that are answered together."""

from typing import Annotated, Literal

from msgspec import Meta

from scenarios.reading.schema.cluster import ClusterSection, SoftwareSection
from scenarios.reading.schema.model import Model
from scenarios.reading.schema.values import MAX_TOKENS, MAX_WORLD_SIZE, ScenarioSection
from scenarios.reading.sections.section import Section
from scenarios.workloads.unread import Unread

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Ranks = Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)]


class RanksSection(Section):
    """A kind of parallelism."""

    degree: Ranks = 1
    """Its number of ranks."""


class InferenceParallelSection(Section):
    """How a replica lies over ranks; the cluster is full of replicas, each with other sequences."""

    tensor: RanksSection = RanksSection()
    """Ranks that share every layer."""
    pipeline: RanksSection = RanksSection()
    """Stages of consecutive layers."""
    expert: RanksSection = RanksSection()
    """Replicas that share out the experts, and exchange tokens."""


class InferenceSection(Section):
    """The sequences, and what is computed of them."""

    sequences: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """Sequences of a micro-batch of each replica, which go through the model together."""
    microbatches: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Micro-batches of each replica; a pipeline needs as many as it has stages to keep all of them busy."""
    prompt_tokens: Tokens = 1024
    """Tokens of each prompt, that is, the context before the answer."""
    prompts: Annotated[tuple[Tokens, ...], Meta(min_length=1, max_length=10_000)] = ()
    """Instead of sequences and prompt_tokens: the tokens of every prompt of a micro-batch."""
    output_tokens: Tokens = 16
    """Tokens of each answer. The pass over the prompts gives the first; 1: there is no other pass."""
    tokens_per_step: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Tokens of a sequence that a step verifies together, all accepted; 1: a step chooses the most likely token."""
    precision: Literal["fp8", "bf16", "fp16", "fp32", "fp64"] = "bf16"
    """Type of weights, activations, keys and values; `fp8`: bf16, but layers multiply and keep eight bits."""
    cache_precision: Literal["fp8"] | None = None
    """Type of keys and values in the caches, `fp8`; left out: that of activations."""
    block_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16
    """Tokens of a block of the caches of keys and values."""


class InferenceScenarioFile(ScenarioSection):
    """Prompts that are answered together: one pass over all of them, then step after step of decoding."""

    workload: Literal["inference"]
    """The kind of work: inference."""
    cluster: ClusterSection
    model: Model
    inference: InferenceSection = InferenceSection()
    parallel: InferenceParallelSection = InferenceParallelSection()
    software: SoftwareSection = SoftwareSection()


UNREAD = (
    Unread(("model.attention", "software.fused_softmax"), "attention to caches is one kernel"),
    Unread(("model.dropout",), "inference drops nothing out"),
    Unread(("model.experts.balance_loss",), "inference has no loss"),
    Unread(("cluster.jitter.optimizer", "software.optimizer_slowdown"), "inference has no optimizer"),
    Unread(("software.step_spread",), "times of inference have no intervals"),
    Unread(("cluster.device_price",), "inference is not paid for"),
)
"""Keys of sections that inference shares with trainings."""
