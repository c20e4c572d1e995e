"""The axes of a training job's mesh: their names and their order."""

from collections.abc import Iterator, Sequence
from typing import Final

from sim.plan.words.mesh import Axes

PIPELINE_AXIS: Final = "pp"
DATA_AXIS: Final = "dp"
EXPERT_AXIS: Final = "ep"
"""The data-parallel ranks that share out experts; ``dp`` then counts how often each expert is there."""
CONTEXT_AXIS: Final = "cp"
TENSOR_PLACE: Final = "tp"
"""In an order of axes: the place of all axes of the tensor-parallel method, which names them."""
AXIS_ORDER: Final = (PIPELINE_AXIS, DATA_AXIS, CONTEXT_AXIS, TENSOR_PLACE)
"""The order where none is stated; the last varies fastest over ranks."""


def mesh_axes(order: Sequence[str], *, pipeline: int, data: int, context: int, tensor: Axes) -> Axes:
    """Return the axes of a mesh, given their order and degrees; that of context parallelism only where it is used."""
    return tuple(_axes(order, {PIPELINE_AXIS: pipeline, DATA_AXIS: data, CONTEXT_AXIS: context}, tensor))


def _axes(order: Sequence[str], degrees: dict[str, int], tensor: Axes) -> Iterator[tuple[str, int]]:
    for place in order:
        if place == TENSOR_PLACE:
            yield from tensor
        elif place != CONTEXT_AXIS or degrees[place] > 1:
            yield place, degrees[place]
