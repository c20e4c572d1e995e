"""The layout of the residual stream between pipeline stages."""

from msgspec import Struct

from sim.plan.functions import basic as f
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import REPLICATED, Layout, sharded


class Boundary(Struct, frozen=True):
    """The form in which a stage sends the residual stream.

    ``layout``: how the tensor that is sent lies over the axes of tensor parallelism. ``scatter_axis``: the axis along
    which a replicated stream is cut by its tokens before it is sent, and gathered on arrival (Narayanan et al. 2021,
    section 4.1); empty: the stream is sent as it lies, and a boundary costs no further communication.
    """

    layout: Layout = REPLICATED
    scatter_axis: str = ""

    @classmethod
    def scattered(cls, axis: str) -> "Boundary":
        """Return the boundary of a replicated stream that is cut along its tokens."""
        return cls(sharded(0, (axis,)), axis)

    def depart(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the tensor to send, given the residual stream."""
        return f.slice_(t, x, self.scatter_axis, 0) if self.scatter_axis else x

    def arrive(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the residual stream, given the received tensor."""
        return f.all_gather(t, x, self.scatter_axis, 0) if self.scatter_axis else x

    def arrive_back(self, t: TaskTracer, gradient: Tensor) -> Tensor:
        """Return the gradient of the residual stream, given the received gradient."""
        return t.gather(gradient, self.scatter_axis, 0, Kind.WORKSPACE) if self.scatter_axis else gradient
