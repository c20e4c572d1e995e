"""How ranks share sequences: typed, checked input."""

from collections.abc import Sequence
from typing import Literal

from sim.training.errors import SpecError
from sim.training.spec.parallelism.mesh_axes import AXIS_ORDER, CONTEXT_AXIS

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


def check_axis(axis_order: Sequence[str]) -> None:
    """Raise SpecError where the order of axes leaves that of context parallelism out."""
    if CONTEXT_AXIS not in axis_order:
        raise SpecError(
            "parallel.axis_order",
            f"context parallelism lies along the axis {CONTEXT_AXIS}, which is not listed",
            f"leave axis_order out, or list {', '.join(AXIS_ORDER)}",
        )
