"""Common parts of methods on a mesh of several axes: sides, the order of axes over ranks, and norms of shared rows."""

from abc import abstractmethod

from sim.plan.functions.blocks.norm import shared_norm
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.mesh import Axes
from sim.training.errors import SpecError
from sim.training.tensor.method import TensorMethod
from sim.training.tensor.rules import check_blocks

_PREFIX = "tp_"


class MeshMethod(TensorMethod, frozen=True, kw_only=True):
    """A method whose blocks lie on a mesh."""

    mesh: tuple[int, ...] = ()
    axis_order: tuple[str, ...] = ()
    """Its axes without their prefix; the last varies fastest over ranks. Empty: the method's own order."""
    node_block: tuple[int, ...] = ()
    """Sides, in the order of ``mesh``, of the blocks of the mesh whose ranks follow each other. Empty: no blocks."""

    @property
    def mesh_sides(self) -> tuple[int, ...]:
        """Return the ranks along each side."""
        return self.mesh

    @property
    def side(self) -> int:
        """Return the number of ranks along the first side."""
        return self.mesh[0] if self.mesh else 1

    @property
    @abstractmethod
    def own_axes(self) -> Axes:
        """Return the axes in the method's own order."""

    @property
    @abstractmethod
    def side_axes(self) -> tuple[str, ...]:
        """Return the axes in the order of the sides of ``mesh``."""

    @property
    def blocks(self) -> Axes:
        """Return the sides of the blocks whose ranks follow each other, in the order of the axes."""
        sides = dict(zip(self.side_axes, self.node_block, strict=False))
        return tuple((axis, sides[axis]) for axis, _ in self.axes if axis in sides)

    @property
    def axes(self) -> Axes:
        """Return the axes in the order that is asked for."""
        degrees = dict(self.own_axes)
        return tuple((f"{_PREFIX}{word}", degrees[f"{_PREFIX}{word}"]) for word in self.axis_order) or self.own_axes

    def check_placement(self) -> None:
        """Raise SpecError unless an order that is asked for names every axis once, and blocks divide the mesh."""
        words = [axis.removeprefix(_PREFIX) for axis, _ in self.own_axes]
        if self.axis_order and sorted(self.axis_order) != sorted(words):
            rule = f"method {self.name} has the axes {', '.join(words)}, each of which belongs here once"
            raise SpecError("parallel.tensor.axis_order", rule, f"write [{', '.join(words)}] in another order")

        if self.node_block:
            check_blocks(self.node_block, self.mesh)

    def norm(self, t: TaskTracer, name: str, x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
        """Return the norm of x, whose sums go over the ranks that share its rows."""
        return shared_norm(t, name, x, weight, bias)
