"""Batch, numbers and optimizer."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from scenarios.reading.quantities import Count
from scenarios.reading.schema.layer_ranges import LayerRanges
from scenarios.reading.schema.values import MAX_MICROBATCHES, Probability
from scenarios.reading.sections.section import Section
from sim.training.pipeline.spec import Recompute, RecomputeMethod
from sim.training.spec.job import Optimizer
from sim.training.spec.method import LocalUpdate, Method

MAX_BATCH: Final = 1_000_000_000

Positive = Annotated[float, Meta(gt=0, le=1e3)]


class TrainingSection(Section):
    """Batch, numbers and optimizer of dense training."""

    global_batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH)]
    """Sequences per optimizer step, over all replicas."""
    microbatch_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Sequences per micro-batch of one replica."""
    tokens: Count | None = None
    """Tokens to train on in all: the result says how many steps and days they take."""
    precision: Literal["fp8", "fp16", "bf16", "fp32", "fp64"] = "bf16"
    """Type of activations and weights; fp16 and bf16 keep fp32 master weights and gradients.

    fp8: as bf16, but the products of the layers take operands cast to eight bits, E4M3, gradients to E5M2.
    """
    recompute: Recompute = "none"
    """Activations computed again in the backward pass: none, attention's, or whole layers."""
    recompute_num_layers: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """recompute full: layers of every virtual stage that are computed again, see recompute_method; default all."""
    recompute_method: RecomputeMethod | None = None
    """`block` (default): the first recompute_num_layers of a stage; `uniform`: all, so many at a time (Megatron-LM)."""
    recompute_layers: LayerRanges | None = None
    """recompute full: the layers of the model that are computed again, as [0, 4-7], all others being kept."""
    checkpoint_early_stop: bool = False
    """Recomputation ends where backward needs no more (torch's checkpoint); false: all runs again (Megatron-LM's)."""
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
    set_gradients_to_none: bool = False
    """No gradient is cleared before a step; the first micro-batch's backward assigns it, and later ones add to it."""
    whole_embedding_gradient: bool = False
    """Backward makes the gradient of the whole embedding, and a second kernel adds it, as under autograd."""
    prescale_gradients: bool = False
    """Replicas divide their gradients by their number before they are summed, as Megatron-LM does."""
    check_gradients: bool = False
    """Before their sum over replicas, the squares of all gradients are summed to find NaN, as Megatron-LM does."""
    method: Method = "backprop"
    """`backprop` (default, but with schedule local), or `local`: blocks of layers with losses of their own."""
    local_update: LocalUpdate | None = None
    """method local: `greedy` (default), or `overlapping`: a block also learns from the next block's loss."""


class DelayTrainingSection(Section):
    """Training of a textbook workload."""

    num_microbatches: Annotated[int, Meta(ge=1, le=MAX_MICROBATCHES)]
    """Micro-batches per step."""
    method: Method = "backprop"
    """`backprop` (default, but with schedule local), or `local`: blocks of layers with losses of their own."""
    local_update: LocalUpdate | None = None
    """method local: `greedy` (default), or `overlapping`: a block also learns from the next block's loss."""
