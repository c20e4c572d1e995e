"""The parts of a model's layers under one strategy: weights, products, norms, and the layouts between them."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from sim.plan.functions import basic as f
from sim.plan.functions.gradients import checkpoint
from sim.plan.functions.linear import Products
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import TokenPart
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Part
from sim.plan.words.layout import REPLICATED, Layout
from sim.training.layers import rank_routing
from sim.training.pipeline.spec import Recompute, RecomputeMethod
from sim.training.sequence.method import SequenceMethod
from sim.training.sequence.unshared import Unshared
from sim.training.spec.models.model import TransformerSpec
from sim.training.tensor.method import Factor, TensorMethod


class LayerBuilder(Struct, frozen=True):
    """Writes the pieces of a layer of one model under one strategy.

    ``slices``: into how many parts the weight of a linear layer, by name, is split along its input; one if left out.
    ``part``: the tokens of every sequence that a task computes; None: all that its rank has. ``sequence``: how ranks
    share sequences. ``products``: how the layers' are made.
    ``whole_embedding_gradient``: backward makes that of all rows before it is added.
    """

    model: TransformerSpec
    microbatch_size: int
    tensor: TensorMethod
    recompute: Recompute
    loss_scale: float
    products: Products
    slices: Mapping[str, int] = field(default_factory=dict)
    part: TokenPart | None = None
    sequence: SequenceMethod = field(default_factory=Unshared)
    whole_embedding_gradient: bool = False
    recompute_num_layers: int | None = None
    recompute_method: RecomputeMethod = "block"
    """Of layers that are recomputed whole: how many of a stage, and which; None: all, one by one."""
    recompute_layers: tuple[int, ...] | None = None
    """Of layers that are recomputed whole: which of the model; None: see above."""
    routing: "rank_routing.RankRouting | None" = None
    """The forced routing of this rank and of those that share experts with it; None: no routing is forced."""
    checkpoint_early_stop: bool = False
    """Backward runs again only what it needs of a checkpointed function, not all of it."""

    @property
    def num_tokens(self) -> int:
        """Return how many tokens of a sequence a task computes."""
        return self.rows.num_tokens

    @property
    def rows(self) -> Rows:
        """Return which tokens of a sequence a task computes."""
        return self.part.rows if self.part else self.sequence.rows(self.model.sequence_length)

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

    def column_weights(self, t: TaskTracer, name: str, shape: tuple[int, ...], outputs: int = 1) -> list[Parameter]:
        """Return the weight of a column-parallel product; ``outputs``: the dimension of outputs that may be cut."""
        return self.weights(t, name, shape, self.tensor.column_layout(outputs))

    def row_weights(self, t: TaskTracer, name: str, shape: tuple[int, ...]) -> list[Parameter]:
        """Return the weight of a row-parallel product, whose last dimension is the hidden one."""
        return self.weights(t, name, shape, self.tensor.row_layout(len(shape) - 1))

    def column_bias(
        self, t: TaskTracer, name: str, shape: tuple[int, ...], *, biased: bool = False
    ) -> Parameter | None:
        """Return the bias of a column-parallel product; None in families without, unless ``biased`` says so."""
        if not (self.biased or biased):
            return None
        return t.program.parameter(f"{name}.bias", shape, self.tensor.column_bias_layout(), "zeros")

    def column(
        self, t: TaskTracer, name: str, x: Tensor, weights: Sequence[Parameter], bias: Parameter | None = None
    ) -> Tensor:
        """Return the column-parallel product of x, which lies as the residual stream."""
        return self.tensor.column(t, name, x, weights, bias, products=self.products)

    def row(self, t: TaskTracer, name: str, x: Tensor, weights: Sequence[Parameter], contract: int = 1) -> Tensor:
        """Return the row-parallel product of x, as the residual stream lies."""
        return self.tensor.row(t, name, x, weights, contract=contract, products=self.products)

    def product(
        self, t: TaskTracer, name: str, x: Tensor, weights: Sequence[Parameter], bias: Parameter | None = None
    ) -> Tensor:
        """Return a product that neither enters from the residual stream nor leaves to it."""
        return self.tensor.multiply(t, name, x, Factor(weights, bias), self.products)

    def head_norm(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Return the RMS norm of every head of x[s, b, n, d], all by one weight (Henry et al. 2020)."""
        return f.rms_norm(t, name, x, t.program.parameter(f"{name}.weight", (x.shape[-1],), REPLICATED, "ones"))

    def norm(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Return the family's norm of x over its last dimension."""
        layout = self.tensor.hidden_layout()
        width = (x.shape[-1] * t.mesh.degree(*layout.shard_axes(0)),)
        weight = t.program.parameter(f"{name}.weight", width, layout, "ones")
        if self.model.family == "llama":
            return self.tensor.norm(t, name, x, weight)
        return self.tensor.norm(t, name, x, weight, t.program.parameter(f"{name}.bias", width, layout, "zeros"))

    def checkpointed(
        self, t: TaskTracer, function: Callable[[TaskTracer, Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]
    ) -> Tensor:
        """Return ``function(inputs)``; backward runs the function again."""
        return checkpoint(t, function, inputs, stops_early=self.checkpoint_early_stop)
