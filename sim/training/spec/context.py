"""Context parallelism: which combinations with other techniques are built."""

from typing import Literal

from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.mesh_axes import CONTEXT_AXIS
from sim.training.spec.model import TransformerSpec

DEGREE_KEY = "parallel.context.degree"

ContextMethod = Literal["p2p", "all_gather"]
"""How attention gets the keys and values of other ranks."""


def check_chunks(sequence_length: int, context_degree: int, multiple: int) -> None:
    """Raise SpecError unless a sequence makes two chunks per rank, and a rank's two are a multiple of ``multiple``."""
    if sequence_length % (2 * context_degree):
        raise SpecError(
            DEGREE_KEY,
            f"sequence_length {sequence_length} does not divide into 2 x {context_degree} chunks, two per rank",
            f"choose a degree whose double divides {sequence_length}, or change model.sequence_length",
        )
    tokens = sequence_length // context_degree
    if tokens % multiple:
        raise SpecError(
            DEGREE_KEY,
            f"a rank's {tokens} tokens do not divide over {multiple} tensor-parallel ranks",
            f"choose degrees for which sequence_length / context degree is a multiple of {multiple}",
        )


def check_context(
    model: TransformerSpec, pipeline: PipelineSpec, axis_order: tuple[str, ...], *, zero_stage: int, by_operator: bool
) -> None:
    """Raise SpecError for what is not built where ranks share sequences."""
    if CONTEXT_AXIS not in axis_order:
        raise SpecError(
            "parallel.axis_order",
            f"context parallelism lies along the axis {CONTEXT_AXIS}, which is not listed",
            "leave axis_order out, or list pp, dp, cp, tp",
        )
    if model.attention != "flash":
        rule = "context parallelism is built for fused attention, which keeps no scores"
        raise SpecError("model.attention", rule, "write attention: flash, or leave parallel.context out")
    if pipeline.num_slices > 1 or pipeline.awaits_slices:
        rule = f"{pipeline.schedule} cuts sequences into slices, and context parallelism into chunks; not both"
        raise SpecError("parallel.pipeline.schedule", rule, "write schedule: 1f1b, or leave parallel.context out")
    if pipeline.schedule == "local":
        rule = "local is not built for context parallelism"
        raise SpecError("parallel.pipeline.schedule", rule, "write schedule: 1f1b, or leave parallel.context out")
    if by_operator or zero_stage > 1:
        key = "osdp" if by_operator else "zero_stage"
        rule = "gradients and parameters are not sharded over ranks that share sequences, only the optimizer state is"
        raise SpecError(f"parallel.data.{key}", rule, "write zero_stage: 1, or leave parallel.context out")
