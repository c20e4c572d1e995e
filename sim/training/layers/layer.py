"""What the layers of a model are made of under one strategy: weights, products, norms, and the layouts between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.plan.functions import basic as f
from sim.plan.functions.context import SharedSequence
from sim.plan.functions.gradients import checkpoint
from sim.plan.functions.linear import Products, linear
from sim.plan.functions.ring_linear import gathered_linear, scattered_linear
from sim.plan.functions.rows import Rows
from sim.plan.functions.split_linear import split_linear
from sim.plan.functions.token_slices import TokenSlice
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Part
from sim.plan.words.layout import REPLICATED, Layout, sharded
from sim.training.pipeline.spec import Recompute
from sim.training.spec.context import ContextMethod
from sim.training.spec.mesh_axes import TENSOR_AXIS
from sim.training.spec.model import TransformerSpec


@dataclass(frozen=True, slots=True)
class LayerBuilder:
    """Writes the pieces of a layer of one model under one strategy.

    ``slices``: into how many parts the weight of a linear layer, by name, is split along its input; one if left out.
    ``part``: the tokens of every sequence that a task computes; ``shared``: how ranks share sequences; None: all, not.
    ``context_method``: how attention gets the keys and values of the others. ``products``: how the layers' are made.
    ``collective_matmul``: those of sequence parallelism in pieces, which are gathered and scattered meanwhile.
    ``whole_embedding_gradient``: backward makes that of all rows before it is added.
    """

    model: TransformerSpec
    microbatch_size: int
    tensor_parallel: bool
    sequence_parallel: bool
    recompute: Recompute
    loss_scale: float
    products: Products
    collective_matmul: bool = False
    slices: Mapping[str, int] = field(default_factory=dict)
    part: TokenSlice | None = None
    shared: SharedSequence | None = None
    context_method: ContextMethod = "p2p"
    whole_embedding_gradient: bool = False
    checkpoint_early_stop: bool = False
    """Backward runs again only what it needs of a checkpointed function, not all of it."""

    @property
    def num_tokens(self) -> int:
        """Return how many tokens of a sequence a task computes."""
        return self.rows.num_tokens

    @property
    def rows(self) -> Rows:
        """Return which tokens of a sequence a task computes."""
        part = self.part or self.shared
        return part.rows if part else Rows(self.model.sequence_length, self.model.sequence_length)

    @property
    def biased(self) -> bool:
        """Return whether linear layers have biases."""
        return self.model.family == "gpt"

    # --- products and norms --------------------------------------------------------------------------------

    def weights(
        self, t: TaskTracer, name: str, shape: tuple[int, ...], layout: Layout, *, dim: int = 0
    ) -> list[Parameter]:
        """Return the weight of a linear layer, in parts along its input dimension where it is split."""
        count = self.slices.get(name, 1)
        parts = [Part(dim, index, count) for index in range(count)] if count > 1 else [None]
        return [t.program.parameter(f"{name}.weight", shape, layout, "normal", part=part) for part in parts]

    def column(
        self, t: TaskTracer, name: str, x: Tensor, weights: Sequence[Parameter], bias: Parameter | None = None
    ) -> Tensor:
        """Return the product of x, which lies as the residual stream, with a weight that is split along its output."""
        if self.collective_matmul:
            return gathered_linear(t, name, x, weights[0], bias, axis=TENSOR_AXIS, products=self.products)
        return self.product(t, name, self.column_input(t, x), weights, bias)

    def row(self, t: TaskTracer, name: str, x: Tensor, weights: Sequence[Parameter], contract: int = 1) -> Tensor:
        """Return the product of x with a weight that is split along its input, as the residual stream lies."""
        if self.collective_matmul:
            return scattered_linear(t, name, x, weights[0], axis=TENSOR_AXIS, contract=contract, products=self.products)
        return self.row_output(t, self.product(t, name, x, weights, contract=contract))

    def product(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        contract: int = 1,
    ) -> Tensor:
        """Return a layer's product with a weight, of operands as this strategy wants them."""
        if len(weights) > 1:
            return self.linear(t, name, x, weights, bias, contract=contract)
        return linear(t, name, x, weights[0], bias, contract=contract, products=self.products)

    def linear(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Return a product with a weight, or its parts, whose gradient is computed as this strategy wants it."""
        if len(weights) > 1:
            weight_gradient = self.products.weight_gradient
            return split_linear(t, name, x, weights, bias, weight_gradient=weight_gradient, **attributes)
        return linear(t, name, x, weights[0], bias, products=Products(self.products.weight_gradient), **attributes)

    def norm(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Return the family's norm of x over its last dimension."""
        h = (x.shape[-1],)
        weight = t.program.parameter(f"{name}.weight", h, REPLICATED, "ones")
        if self.model.family == "llama":
            return f.rms_norm(t, name, x, weight)
        return f.layer_norm(t, name, x, weight, t.program.parameter(f"{name}.bias", h, REPLICATED, "zeros"))

    def checkpointed(
        self, t: TaskTracer, function: Callable[[TaskTracer, Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]
    ) -> Tensor:
        """Return ``function(inputs)``; backward runs the function again."""
        return checkpoint(t, function, inputs, stops_early=self.checkpoint_early_stop)

    # --- layouts -------------------------------------------------------------------------------------------

    def shard(self, dim: int) -> Layout:
        """Return the layout of a weight that tensor parallelism splits along ``dim``."""
        return sharded(dim, (TENSOR_AXIS,)) if self.tensor_parallel else REPLICATED

    def column_input(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return x whole on every rank, as a column-parallel product wants it."""
        return f.all_gather(t, x, TENSOR_AXIS, 0, regather=True) if self.sequence_parallel else x

    def row_output(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the sum of a row-parallel product, as the residual stream lies."""
        if not self.tensor_parallel:
            return x
        return f.reduce_scatter(t, x, TENSOR_AXIS, 0) if self.sequence_parallel else f.all_reduce(t, x, TENSOR_AXIS)
