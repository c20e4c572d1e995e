"""Products of matrices in blocks on a square of ranks: SUMMA (van de Geijn and Watts 1997; Xu et al. 2021, Optimus).

Rank (i, j) has block (i, j) of every matrix: of an activation, rows of batch slice i and columns j; of a weight, inputs
i and outputs j; of a transposed weight, outputs i and inputs j. With q ranks along each side a product takes q steps:

* C = A B: broadcast block (i, t) of A along the row, (t, j) of B along the column, and add their product to C.
* C = A B^T: broadcast block (t, j) of B along the column, and sum the products A B^T along the row at column t.
* C = A^T B: broadcast block (i, t) of A along the row, and sum the products A^T B along the column at row t.

The gradients of a product of one form are products of the other two.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from msgspec import Struct, field

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.op import Collective, CollectiveKind, Compute

_MAIN_STREAM = "compute"
_WHOLE = {"part": (0, 1)}
"""The part (first of one) with which ``matmul_part`` takes whole operands."""
_Source = tuple[str, Tensor]
"""A mesh axis, and the matrix whose blocks are broadcast along that axis one after the other."""


class Grid(Struct, frozen=True):
    """The mesh axes of a product.

    ``row``: the axis that splits rows of blocks. ``column``: the axis that splits columns of blocks.
    ``prefetch``: while a step computes, the blocks of the next step are broadcast and the products of the last step are
    summed (Colossal-AI, parallel_2d); otherwise the rank waits for each communication (Optimus).
    ``depth``: the axis of copies of the weights, if their gradients are summed after every backward (Wang et al. 2021,
    Tesseract); empty: the gradients are summed at the end of the step, or there are no copies.
    """

    row: str
    column: str
    prefetch: bool = False
    depth: str = ""

    def stream(self, axis: str) -> str:
        """Return the stream of the communication along an axis."""
        return axis if self.prefetch else _MAIN_STREAM


class _Product(Struct, frozen=True):
    """The emitter of one product's steps. Its workspace holds the blocks of one step, or of two with prefetching."""

    t: TaskTracer
    grid: Grid
    name: str
    _workspace: dict[str, list[Tensor]] = field(default_factory=dict)

    def run(self, ready: Tensor, sources: Sequence[_Source], multiply: Callable[[int, Sequence[Tensor]], None]) -> None:
        """Emit all steps: the broadcasts of the sources' blocks, and the ops of ``multiply(step, blocks)``.

        ``ready``: the operand that is computed last. As in a library, no communication starts before it exists.
        """
        num_steps, ahead = self.t.mesh.degree(self.grid.row), int(self.grid.prefetch)
        if ahead:
            name, (stream, _) = self.t.unique(f"{self.name}.begin"), sources[-1]
            self.t.emit(Compute(name, "delay", (ready.name,), (), {"duration_s": 0.0}, stream))
        fetched = 0
        for step in range(num_steps):
            while fetched <= min(step + ahead, num_steps - 1):
                for axis, source in sources:
                    self._broadcast(axis, source, fetched)
                fetched += 1
            multiply(step, [self.block(f"block_{axis}", source, step) for axis, source in sources])

    def block(self, label: str, like: Tensor, step: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Return the workspace of a step, with the type of ``like`` and, without ``shape``, its shape."""
        slots = self._workspace.setdefault(label, [])
        place = step % (1 + int(self.grid.prefetch))
        if len(slots) <= place:
            name = f"{self.t.unique(f'{self.name}.{label}')}{self.t.part}"
            buffer = Buffer(name, shape or like.shape, like.dtype, Kind.WORKSPACE, self.t.scope)
            slots.append(self.t.program.tensor(buffer))
        return slots[place]

    def _broadcast(self, axis: str, source: Tensor, step: int) -> None:
        block, kind = self.block(f"block_{axis}", source, step), CollectiveKind.BROADCAST
        op_name, stream = self.t.unique(f"{self.name}.broadcast_{axis}.{step}"), self.grid.stream(axis)
        self.t.emit(Collective(op_name, kind, (axis,), (source.name,), (block.name,), stream, root=step))

    def compute(
        self, step: int, kernel: str, reads: Sequence[Tensor], target: Tensor, attributes: dict[str, Any]
    ) -> None:
        """Emit a step's kernel, which writes ``target`` or adds to it."""
        name = self.t.unique(f"{self.name}.step{step}")
        self.t.emit(Compute(name, kernel, tuple(x.name for x in reads), (target.name,), attributes))

    def reduce(self, axis: str, term: Tensor, total: Tensor, root: int) -> None:
        """Emit the sum of all ranks' terms into the root's total; the totals of other ranks keep their contents."""
        op_name, stream = self.t.unique(f"{self.name}.reduce_{axis}.{root}"), self.grid.stream(axis)
        kind = CollectiveKind.REDUCE
        op = Collective(op_name, kind, (axis,), (term.name,), (total.name,), stream, root=root, root_only=root > 0)
        self.t.emit(op)

    def made(self, label: str, shape: tuple[int, ...], like: Tensor, layout: Layout, kind: Kind) -> Tensor:
        """Return a new tensor for the result."""
        name = f"{self.t.unique(label)}{self.t.part}"
        return self.t.program.tensor(Buffer(name, shape, like.dtype, kind, self.t.scope), layout)

    def accumulated(
        self, x: Tensor, w: Tensor, y: Tensor, attributes: dict[str, Any], bias: Sequence[Tensor] = ()
    ) -> None:
        """Emit C = A B into y: the first product writes y, the others add to it, the last one with the bias."""

        def multiply(step: int, blocks: Sequence[Tensor]) -> None:
            is_last = step == self.t.mesh.degree(self.grid.row) - 1
            given = (y,) if step else ()
            self.compute(step, "matmul_part", (*blocks, *given, *(bias if is_last else ())), y, attributes | _WHOLE)

        self.run(x, [(self.grid.column, x), (self.grid.row, w)], multiply)

    def summed(
        self,
        ready: Tensor,
        source: _Source,
        total: _Source,
        kernel: str,
        operands: Callable[[Tensor], tuple[Tensor, ...]],
        attributes: dict[str, Any],
    ) -> None:
        """Emit a product whose terms are summed along an axis: C = A B^T or C = A^T B."""
        axis, result = total

        def multiply(step: int, blocks: Sequence[Tensor]) -> None:
            term = self.block("term", result, step)
            self.compute(step, kernel, operands(blocks[0]), term, attributes)
            self.reduce(axis, term, result, step)

        self.run(ready, [source], multiply)


def summa_linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    grid: Grid,
    contract: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Return x[..., *k] times weight[*k, *n], plus bias[*n], or times weight[n, k] transposed, without a bias.

    ``grid.column`` shards the columns of x, of the weight and of the result; ``grid.row`` shards the rows of the
    weight. The weight's gradient is already summed over rows. Raises LayoutError for other layouts.
    """
    layout, shape = _result(x, weight.value, grid, contract, transposed=transposed)
    product = _Product(t, grid, name)
    y = product.made(name, shape, x, layout, Kind.ACTIVATION)
    attributes: dict[str, Any] = {"contract": contract, "transposed": transposed}
    if transposed:
        source, total = (grid.row, weight.value), (grid.column, y)
        product.summed(x, source, total, "matmul", lambda block: (x, block), attributes)
    else:
        product.accumulated(x, weight.value, y, attributes, () if bias is None else (bias.value,))
    of_weight = summed_layout(weight, x, range(len(x.shape) - contract, len(x.shape)))
    t.program.set_gradient_layout(weight, of_weight.without(grid.depth))
    if bias is not None:
        t.program.set_gradient_layout(bias, summed_layout(bias, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy, kept = only(gradients), r.saved(x)
        dx = _input_gradient(_Product(r, grid, f"{name}.input_gradient"), dy, x, weight, attributes)
        _weight_gradient(_Product(r, grid, f"{name}.weight_gradient"), dy, kept, weight, attributes)
        if bias is not None:
            r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))
        return [dx]

    t.record((x,), (y,), backward)
    return y


def _input_gradient(p: _Product, dy: Tensor, x: Tensor, weight: Parameter, attributes: dict[str, Any]) -> Tensor:
    dx = p.made(p.name, x.shape, x, x.layout, Kind.WORKSPACE)
    if attributes["transposed"]:
        p.accumulated(dy, weight.value, dx, {"contract": 1, "transposed": False})
    else:
        source, total = (p.grid.row, weight.value), (p.grid.column, dx)
        p.summed(dy, source, total, "matmul_input_gradient", lambda block: (dy, block), attributes)
    return dx


def _weight_gradient(p: _Product, dy: Tensor, x: Tensor, weight: Parameter, attributes: dict[str, Any]) -> None:
    dw = p.made(p.name, weight.value.shape, x, weight.value.layout, Kind.WORKSPACE)
    kernel, total = "matmul_weight_gradient", (p.grid.row, dw)
    if attributes["transposed"]:
        p.summed(dy, (p.grid.column, dy), total, kernel, lambda block: (x, block), attributes)
    else:
        p.summed(dy, (p.grid.column, x), total, kernel, lambda block: (block, dy), attributes)
    _accumulate(p, dw, weight)


def _accumulate(p: _Product, dw: Tensor, weight: Parameter) -> None:
    """Emit the sum over ``depth``, and the addition to the accumulated gradient on the stream of the communication.

    So no computation waits for them.
    """
    if p.grid.depth:
        p.t.all_reduce(dw, p.grid.depth)
    stream, total = p.grid.depth or p.grid.stream(p.grid.row), weight.gradient.name
    p.t.emit(Compute(p.t.unique(f"{p.name}.add"), "add", (dw.name, total), (total,), {}, stream))


def _result(x: Tensor, w: Tensor, grid: Grid, contract: int, *, transposed: bool) -> tuple[Layout, tuple[int, ...]]:
    """Return layout and shape of a product. Raises LayoutError unless x and w lie in blocks."""
    rows = len(x.shape) - contract
    inputs, outputs = (grid.column, grid.row) if transposed else (grid.row, grid.column)
    place, first = w.layout.get(outputs), (1 if transposed else 0)
    in_blocks = isinstance(place, Shard) and w.layout.get(inputs) == Shard(first)
    if not in_blocks or x.layout.get(grid.column) != Shard(rows) or grid.row not in x.layout.shard_axes(1):
        raise LayoutError(f"{x.name} as {x.layout} and {w.name} as {w.layout} do not lie in blocks of a SUMMA product")
    assert isinstance(place, Shard)
    remaining = w.shape[:1] if transposed else w.shape[contract:]
    if prod(x.shape[rows:]) != prod(w.shape[1:] if transposed else w.shape[:contract]):
        raise LayoutError(f"{x.name} {x.shape} and {w.name} {w.shape} are no blocks of one product")
    dim = rows if transposed else rows + place.dim - contract
    return x.layout.without(grid.column).with_(grid.column, Shard(dim)), (*x.shape[:rows], *remaining)


def summa_embedding(t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, grid: Grid) -> Tensor:
    """Return the ids' rows of table[V, h]. The table's blocks are broadcast along columns; ranks look up their ids."""
    product, value = _Product(t, grid, name), table.value
    layout = ids.layout.with_(grid.column, Shard(2))
    y = product.made(name, (*ids.shape, value.shape[1]), value, layout, Kind.ACTIVATION)

    def look_up(step: int, blocks: Sequence[Tensor]) -> None:
        product.compute(step, "block_embedding", (ids, *blocks, *((y,) if step else ())), y, {"block": step})

    product.run(ids, [(grid.row, value)], look_up)
    t.program.set_gradient_layout(table, summed_layout(table, ids).without(grid.depth))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        p, dy = _Product(r, grid, f"{name}.backward"), only(gradients)
        dtable = p.made(p.name, value.shape, dy, value.layout, Kind.WORKSPACE)
        for step in range(r.mesh.degree(grid.row)):
            term, attributes = p.block("term", dtable, step), {"block": step, "rows": value.shape[0]}
            p.compute(step, "block_embedding_backward", (ids, dy), term, attributes)
            p.reduce(grid.row, term, dtable, step)
        _accumulate(p, dtable, table)
        return [None]

    t.record((ids,), (y,), backward)
    return y
