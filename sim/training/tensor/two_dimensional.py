"""Optimus: every matrix lies in blocks on a square of ranks, and products are SUMMA's (Xu et al. 2021)."""

from typing import ClassVar, Final

from sim.plan.functions.blocks.summa import Grid, summa_embedding, summa_linear
from sim.plan.functions.linear import Products
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.layout import Layout, Shard, sharded
from sim.plan.words.mesh import Axes
from sim.training.tensor.mesh_method import MeshMethod
from sim.training.tensor.method import Factor, Overlap, Sizes
from sim.training.tensor.rules import check_divisors, check_form

ROW: Final = "tp_row"
COLUMN: Final = "tp_column"
CUT: Final = (
    "model.num_heads", "model.num_kv_heads", "model.hidden_size", "model.ffn_hidden_size", "model.vocab_size",
    "training.microbatch_size",
)  # fmt: skip


class TwoDimensional(MeshMethod, frozen=True, kw_only=True):
    """Blocks on q x q ranks: rows and inputs over one axis, columns and outputs over the other."""

    overlap: Overlap = "none"

    name: ClassVar[str] = "2d"

    # --- ranks and sizes -----------------------------------------------------------------------------------

    @property
    def own_axes(self) -> Axes:
        """Return rows and columns; neighbouring ranks have neighbouring columns."""
        return ((ROW, self.side), (COLUMN, self.side))

    @property
    def side_axes(self) -> tuple[str, ...]:
        """Return the axes in the order of the sides of ``mesh``."""
        return (ROW, COLUMN)

    @property
    def sample_axes(self) -> tuple[str, ...]:
        """Return the axis of rows."""
        return (ROW,)

    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Raise SpecError unless the mesh is a square whose side divides heads, widths, words and the micro-batch."""
        check_form(self.name, self.mesh, "q q")
        self.check_placement()
        check_divisors(sizes, dict.fromkeys(CUT, self.side), self.mesh)

    # --- layouts -------------------------------------------------------------------------------------------

    @property
    def residual(self) -> Layout:
        """Return the residual stream's layout: sequences over rows, hidden states over columns."""
        return Layout((*((axis, Shard(1)) for axis in self.sample_axes), (COLUMN, Shard(2))))

    def column_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of blocks."""
        return Layout(((ROW, Shard(inputs)), (COLUMN, Shard(outputs))))

    def row_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of blocks, that of every weight."""
        return self.column_layout(outputs, inputs)

    def column_bias_layout(self) -> Layout:
        """Return the layout that cuts the first dimension over columns."""
        return sharded(0, (COLUMN,))

    def hidden_layout(self, dim: int = 0) -> Layout:
        """Return the layout that cuts the hidden size over columns."""
        return sharded(dim, (COLUMN,))

    @property
    def vocabulary_layout(self) -> Layout:
        """Return the layout of blocks."""
        return self.column_layout(1)

    # --- products ------------------------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """Return the ranks of a product."""
        return Grid(ROW, COLUMN, prefetch=self.overlap == "prefetch")

    def multiply(self, t: TaskTracer, name: str, x: Tensor, factor: Factor, products: Products) -> Tensor:
        """Return the product of x, whose result lies as x does."""
        (weight,) = factor.weights
        return summa_linear(
            t, name, x, weight, factor.bias,
            grid=self.grid, contract=factor.contract, transposed=factor.transposed,
        )  # fmt: skip

    def embed(self, t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, whole_gradient: bool = False) -> Tensor:
        """Return the rows of a table in blocks; the gradient of a block is always whole."""
        return summa_embedding(t, name, ids, table, grid=self.grid)
