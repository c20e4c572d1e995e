"""Three-dimensional tensor parallelism: every matrix lies in blocks on a cube of ranks (Bian et al. 2021).

The residual stream lies with sequences over ``tp_weight`` and ``tp_input`` and hidden states over ``tp_output``. A
column-parallel product exchanges the last two, and a row-parallel one brings them back.
"""

from typing import ClassVar, Final

from sim.plan.functions.blocks.cube import Cube, cube_embedding, cube_linear
from sim.plan.functions.linear import Products
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.layout import Layout, Shard, sharded
from sim.plan.words.mesh import Axes
from sim.training.tensor.mesh_method import MeshMethod
from sim.training.tensor.method import Factor, Sizes
from sim.training.tensor.rules import check_divisors, check_form

WEIGHT: Final = "tp_weight"
INPUT: Final = "tp_input"
OUTPUT: Final = "tp_output"
_CUT_ONCE: Final = ("model.num_heads", "model.num_kv_heads", "model.head_size")
_CUT_TWICE: Final = (
    "model.hidden_size", "model.ffn_hidden_size", "model.vocab_size", "training.microbatch_size",
)  # fmt: skip


class ThreeDimensional(MeshMethod, frozen=True, kw_only=True):
    """Blocks on p x p x p ranks, none of which holds what another one holds."""

    save_gathered: bool = True
    """Keep gathered inputs and weights for backward; else gather them again."""

    name: ClassVar[str] = "3d"

    # --- ranks and sizes -----------------------------------------------------------------------------------

    @property
    def own_axes(self) -> Axes:
        """Return the axes, of which that of weights varies fastest (Colossal-AI, initializer_3d.py)."""
        return ((OUTPUT, self.side), (INPUT, self.side), (WEIGHT, self.side))

    @property
    def side_axes(self) -> tuple[str, ...]:
        """Return the axes in the order of the sides of ``mesh``."""
        return (OUTPUT, INPUT, WEIGHT)

    @property
    def sample_axes(self) -> tuple[str, ...]:
        """Return the axis of weights: words are looked up before the rows of the result are scattered."""
        return (WEIGHT,)

    @property
    def loss_axes(self) -> tuple[str, ...]:
        """Return the axes of the rows of a column-parallel product, as logits are."""
        return (WEIGHT, OUTPUT)

    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Raise SpecError unless the mesh is a cube whose sides divide what they cut, and a head."""
        check_form(self.name, self.mesh, "p p p")
        self.check_placement()
        cut = dict.fromkeys(_CUT_ONCE, self.side) | dict.fromkeys(_CUT_TWICE, self.side**2)
        check_divisors(sizes, cut, self.mesh)

    # --- layouts -------------------------------------------------------------------------------------------

    @property
    def residual(self) -> Layout:
        """Return the residual stream's layout: sequences over weights and inputs, hidden states over outputs."""
        return Layout(((WEIGHT, Shard(1)), (INPUT, Shard(1)), (OUTPUT, Shard(2))))

    def column_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of a weight that reads the residual stream: it is cut as its input, and once more."""
        return Layout(((OUTPUT, Shard(inputs)), (WEIGHT, Shard(inputs)), (INPUT, Shard(outputs))))

    def row_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of a weight that makes the residual stream; of heads, each is cut once more."""
        return Layout(((INPUT, Shard(inputs)), (WEIGHT, Shard(outputs - 1)), (OUTPUT, Shard(outputs))))

    def column_bias_layout(self) -> Layout:
        """Return the layout that cuts the first dimension as the product's result is cut."""
        return sharded(0, (INPUT,))

    def hidden_layout(self, dim: int = 0) -> Layout:
        """Return the layout that cuts the hidden size as the residual stream is cut."""
        return sharded(dim, (OUTPUT,))

    @property
    def vocabulary_layout(self) -> Layout:
        """Return the layout of a table, cut along words twice."""
        return Layout(((INPUT, Shard(0)), (WEIGHT, Shard(0)), (OUTPUT, Shard(1))))

    # --- products ------------------------------------------------------------------------------------------

    @property
    def _column(self) -> Cube:
        return Cube(INPUT, WEIGHT, OUTPUT, self.save_gathered)

    @property
    def _row(self) -> Cube:
        return Cube(OUTPUT, WEIGHT, INPUT, self.save_gathered)

    def multiply(self, t: TaskTracer, name: str, x: Tensor, factor: Factor, products: Products) -> Tensor:
        """Return the product of x, column-parallel if it lies as the residual stream, else row-parallel."""
        (weight,) = factor.weights
        is_column = x.layout.get(OUTPUT) == Shard(len(x.shape) - factor.contract)
        cube = self._column if is_column else self._row
        return cube_linear(
            t, name, x, weight, factor.bias, cube=cube, contract=factor.contract, transposed=factor.transposed
        )

    def embed(self, t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, whole_gradient: bool = False) -> Tensor:
        """Return the rows of a table; the gradient of its gathered part is always whole."""
        return cube_embedding(t, name, ids, table, cube=self._column)
