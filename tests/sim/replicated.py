"""A second tensor-parallel method, for tests: every rank computes every layer, and nothing is communicated."""

from typing import ClassVar

from sim.plan.functions.linear import Products, linear
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.layout import REPLICATED, Layout
from sim.plan.words.mesh import Axes
from sim.training.tensor.boundary import Boundary
from sim.training.tensor.method import Factor, Sizes, TensorMethod


class Replicated(TensorMethod, frozen=True, kw_only=True):
    """Copies of every layer on all ranks of one axis."""

    name: ClassVar[str] = "replicated"
    sample_axes: ClassVar[tuple[str, ...]] = ()
    overlaps_backward: ClassVar[bool] = False
    cuts_residual: ClassVar[bool] = False
    splits_products: ClassVar[bool] = False
    residual: ClassVar[Layout] = REPLICATED
    vocabulary_layout: ClassVar[Layout] = REPLICATED

    @property
    def axes(self) -> Axes:
        """Return the one axis."""
        return (("tp_copy", self.degree),)

    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Accept all sizes: nothing is cut."""

    def token_multiple(self, *, scatters: bool) -> int:
        """Return 1: nothing is cut."""
        return 1

    def column_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the replicated layout."""
        return REPLICATED

    def row_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the replicated layout."""
        return REPLICATED

    def column_bias_layout(self) -> Layout:
        """Return the replicated layout."""
        return REPLICATED

    def hidden_layout(self, dim: int = 0) -> Layout:
        """Return the replicated layout."""
        return REPLICATED

    def enter(self, t: TaskTracer, x: Tensor, *, again: bool = True) -> Tensor:
        """Return x."""
        return x

    def leave(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def multiply(self, t: TaskTracer, name: str, x: Tensor, factor: Factor, products: Products) -> Tensor:
        """Return the whole product."""
        (weight,) = factor.weights
        return linear(
            t, name, x, weight, factor.bias,
            contract=factor.contract, transposed=factor.transposed, products=products,
        )  # fmt: skip

    def boundary(self, *, scatters: bool) -> Boundary:
        """Return a boundary that sends the whole stream."""
        return Boundary(REPLICATED)
