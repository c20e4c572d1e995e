"""The axes of a training job's mesh: their names and their order."""

from collections.abc import Sequence
from typing import Final

from sim.plan.words.mesh import Axes, Mesh
from sim.plan.words.stream import Purpose, stream_of

PIPELINE_AXIS: Final = "pp"
DATA_AXIS: Final = "dp"
EXPERT_AXIS: Final = "ep"
"""The data-parallel ranks that share out experts; ``dp`` then counts how often each expert is there."""
CONTEXT_PLACE: Final = "cp"
"""In an order of axes: the place of all axes of the method that shares sequences, which names them."""
TENSOR_PLACE: Final = "tp"
"""In an order of axes: the place of all axes of the tensor-parallel method, which names them."""
AXIS_ORDER: Final = (PIPELINE_AXIS, DATA_AXIS, CONTEXT_PLACE, TENSOR_PLACE)
"""The order where none is stated; the last varies fastest over ranks."""


def mesh_axes(order: Sequence[str], *, pipeline: int, data: int, context: Axes, tensor: Axes) -> Axes:
    """Return the axes of a mesh, given their order, degrees and the axes of the methods."""
    places = {
        PIPELINE_AXIS: ((PIPELINE_AXIS, pipeline),), DATA_AXIS: ((DATA_AXIS, data),),
        CONTEXT_PLACE: context, TENSOR_PLACE: tensor,
    }  # fmt: skip
    return tuple(axis for place in order for axis in places[place])


def is_context(axis: str) -> bool:
    """Return whether ranks along an axis share sequences."""
    return stream_of(axis).purpose is Purpose.CONTEXT


def context_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which ranks share sequences, in the order of the mesh."""
    return tuple(axis for axis, _ in mesh.axes if is_context(axis))
