"""Checks of context parallelism in a job: what its method shares out, and its place among the mesh axes."""

from math import prod

from sim.training.errors import SpecError
from sim.training.sequence.method import Shares
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.mesh_axes import AXIS_ORDER, CONTEXT_PLACE
from sim.training.spec.parallelism.parallel import ParallelSpec


def check_shared_sequences(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError where ranks do not share out sequences evenly, or their axis has no place in the mesh."""
    if parallel.context_degree == 1:
        return
    if CONTEXT_PLACE not in parallel.axis_order:
        raise SpecError(
            "parallel.axis_order",
            f"context parallelism lies along the axis {CONTEXT_PLACE}, which is not listed",
            f"leave axis_order out, or list {', '.join(AXIS_ORDER)}",
        )
    degrees = dict(parallel.tensor.axes)
    head_ranks = prod(degrees[axis] for axis in parallel.tensor.column_layout(1).shard_axes(1))
    parallel.sequence.check(
        Shares(
            model.sequence_length, model.num_heads // head_ranks, model.num_kv_heads // head_ranks,
            parallel.token_multiple, fused=model.attention == "flash",
        )
    )  # fmt: skip
