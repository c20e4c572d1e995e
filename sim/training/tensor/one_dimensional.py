"""Megatron-LM's tensor parallelism: weights are cut along one dimension (Shoeybi et al. 2019).

Column-parallel weights are cut along their outputs and row-parallel ones along their inputs, so between the two nothing
is communicated. The residual stream is replicated, and sums of row-parallel products are all_reduced. With sequence
parallelism it is cut along the sequence: all_gathered before the one and reduce_scattered after the other (Korthikanti
et al. 2022).
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from sim.plan.functions import basic as f
from sim.plan.functions import ring_linear, split_linear
from sim.plan.functions.linear import Products, linear
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.layout import REPLICATED, Layout, sharded
from sim.plan.words.mesh import Axes
from sim.training.errors import SpecError
from sim.training.tensor.boundary import Boundary
from sim.training.tensor.method import Factor, Sizes, TensorMethod

AXIS: Final = "tp"
_CUT: Final = ("model.num_heads", "model.num_kv_heads", "model.ffn_hidden_size", "model.vocab_size")
_CUT_OF_EXPERTS: Final = ("model.experts.ffn_hidden_size", "model.experts.shared_ffn_hidden_size")


class OneDimensional(TensorMethod, frozen=True, kw_only=True):
    """Column- and row-parallel products over one axis."""

    sequence_parallel: bool = False
    """Cut the residual stream along the sequence."""
    overlap_backward: bool = True
    """Sum a product's input gradient over the ranks while its weight gradient is computed."""
    collective_matmul: bool = False
    """Gather and scatter sequence-parallel tensors piece by piece, during the products of the other pieces."""
    distribute_saved_activations: bool = False
    """Of what recomputed layers keep, a rank keeps its part of the hidden states; backward gathers it."""

    name: ClassVar[str] = "1d"

    # --- ranks and sizes -----------------------------------------------------------------------------------

    @property
    def axes(self) -> Axes:
        """Return the one axis."""
        return ((AXIS, self.degree),)

    @property
    def sample_axes(self) -> tuple[str, ...]:
        """Return none: every rank computes all sequences of a micro-batch."""
        return ()

    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Raise SpecError where the ranks do not divide heads, widths or words, and for options without effect."""
        sequence = ("model.sequence_length",) if self.sequence_parallel or scatters else ()
        hidden = ("model.hidden_size",) if self.distribute_saved_activations else ()
        for key in (*_CUT, *sequence, *hidden, *_CUT_OF_EXPERTS):
            if sizes.get(key, 0) % self.degree:
                raise SpecError(
                    "parallel.tensor.degree",
                    f"{key.removeprefix('model.')} {sizes[key]} does not divide by tensor degree {self.degree}",
                    f"choose a degree that divides {sizes[key]}, or change {key}",
                )
        if self.sequence_parallel and self.degree == 1:
            raise SpecError(
                "parallel.tensor.sequence_parallel",
                "sequence parallelism splits the sequence over the tensor-parallel ranks, and there is only one",
                "write sequence_parallel: false, or a tensor degree of 2 or more",
            )
        if self.collective_matmul and not self.sequence_parallel:
            raise SpecError(
                "parallel.tensor.collective_matmul",
                "it cuts up the gathers and reduce_scatters of sequence parallelism, and sequence_parallel is false",
                "leave it out, or write sequence_parallel: true and a tensor degree of 2 or more",
            )

        if self.distribute_saved_activations and (self.sequence_parallel or self.degree == 1):
            raise SpecError(
                "parallel.tensor.distribute_saved_activations",
                "no rank keeps what another one keeps: sequence parallelism cuts it" if self.sequence_parallel
                else "it shares out what tensor-parallel ranks keep, and there is only one",
                "leave it out",
            )  # fmt: skip

    def token_multiple(self, *, scatters: bool) -> int:
        """Return the degree where tokens are cut: in the residual stream, or between stages."""
        return self.degree if self.sequence_parallel or scatters else 1

    # --- options that others ask for -----------------------------------------------------------------------

    @property
    def overlaps_backward(self) -> bool:
        """Return whether backward computes a weight's gradient while its input's gradient is communicated."""
        return self.overlap_backward

    @property
    def cuts_residual(self) -> bool:
        """Return whether the residual stream is cut along the sequence."""
        return self.sequence_parallel

    @property
    def splits_products(self) -> bool:
        """Return whether products are made in pieces."""
        return self.collective_matmul

    @property
    def option_of_recomputation(self) -> str:
        """Return the option by which ranks share out what recomputed layers keep, if they do."""
        return "distribute_saved_activations" if self.distribute_saved_activations else ""

    # --- layouts -------------------------------------------------------------------------------------------

    @property
    def residual(self) -> Layout:
        """Return the residual stream's layout: replicated, or cut along the sequence."""
        return self._cut(0) if self.sequence_parallel else REPLICATED

    def column_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout that cuts the outputs."""
        return self._cut(outputs)

    def row_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout that cuts the inputs."""
        return self._cut(inputs)

    def column_bias_layout(self) -> Layout:
        """Return the layout that cuts the first dimension."""
        return self._cut(0)

    def hidden_layout(self, dim: int = 0) -> Layout:
        """Return the replicated layout: every rank has whole hidden states."""
        return REPLICATED

    @property
    def vocabulary_layout(self) -> Layout:
        """Return the layout that cuts the words."""
        return self._cut(0)

    def _cut(self, dim: int) -> Layout:
        return sharded(dim, (AXIS,)) if self.degree > 1 else REPLICATED

    # --- products ------------------------------------------------------------------------------------------

    def enter(self, t: TaskTracer, x: Tensor, *, again: bool = True) -> Tensor:
        """Return x whole on every rank."""
        return f.all_gather(t, x, AXIS, 0, regather=again) if self.sequence_parallel else x

    def leave(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the sum over the ranks of x, as the residual stream lies."""
        if self.degree == 1:
            return x
        return f.reduce_scatter(t, x, AXIS, 0) if self.sequence_parallel else f.all_reduce(t, x, AXIS)

    def saved_for_recomputation(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return x, of which only a part is kept where ranks share that out (Megatron-LM's option of this name)."""
        return f.keep_slice(t, x, AXIS, 2) if self.distribute_saved_activations else x

    def multiply(self, t: TaskTracer, name: str, x: Tensor, factor: Factor, products: Products) -> Tensor:
        """Return the product of this rank's parts."""
        if len(factor.weights) > 1:
            return split_linear.split_linear(
                t, name, x, factor.weights, factor.bias,
                contract=factor.contract, transposed=factor.transposed, weight_gradient=products.weight_gradient,
            )  # fmt: skip
        return linear(
            t, name, x, factor.weights[0], factor.bias,
            contract=factor.contract, transposed=factor.transposed, products=products,
        )  # fmt: skip

    def column(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        *,
        products: Products,
    ) -> Tensor:
        """Return the product of x, gathered at once or piece by piece, with a weight that is cut along its outputs."""
        if self.collective_matmul:
            return ring_linear.gathered_linear(t, name, x, weights[0], bias, axis=AXIS, products=products)
        return self.multiply(t, name, self.enter(t, x), Factor(weights, bias), products)

    def row(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        *,
        contract: int = 1,
        products: Products,
    ) -> Tensor:
        """Return the product of x with a weight that is cut along its inputs, summed at once or piece by piece."""
        if self.collective_matmul:
            return ring_linear.scattered_linear(t, name, x, weights[0], axis=AXIS, contract=contract, products=products)
        return self.leave(t, self.multiply(t, name, x, Factor(weights, contract=contract), products))

    # --- pipelines -----------------------------------------------------------------------------------------

    def boundary(self, *, scatters: bool) -> Boundary:
        """Return a boundary in the stream's layout, or a scattered boundary of a replicated stream."""
        if scatters and self.degree > 1 and not self.sequence_parallel:
            return Boundary.scattered(AXIS)
        return Boundary(self.residual)
