"""Products of matrices in blocks on a cube of ranks (Agarwal et al. 1995; Bian et al. 2021).

An activation is sharded over all three axes of the cube: its rows over ``weight`` and ``rows``, its columns over
``columns``. A product gathers the activation's rows over ``rows``, and the weight over ``weight``. The product is a sum
over ``columns``, and a reduce_scatter over that axis shards it by rows. So ``rows`` and ``columns`` have changed places
in the result, and a second product changes them back.
"""

from typing import Any

from msgspec import Struct

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.linear import input_gradient_layout, product_layout
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import PARTIAL, Layout, Shard
from sim.plan.words.op import Collective, CollectiveKind, Compute

_BATCH = 1


class Cube(Struct, frozen=True):
    """The mesh axes of one product.

    ``rows``: shards the rows of the input. ``columns``: shards the columns of the input. ``weight``: shards the rows of
    the input and of the result, and the weight.
    ``save_gathered``: forward keeps the gathered input and weight for backward; otherwise backward gathers them again.
    """

    rows: str
    weight: str
    columns: str
    save_gathered: bool = False


def cube_linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    cube: Cube,
    contract: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Return x[..., *k] times weight[*k, *n], plus bias[*n], or times weight[n, k] transposed.

    In the result the axes ``cube.rows`` and ``cube.columns`` have changed places: rows are sharded over
    ``cube.columns``, columns over ``cube.rows``. The weight's gradient is already summed over ``cube.weight``. Raises
    LayoutError for inputs with other layouts.
    """
    cut = _weight_dim(weight.value, cube)
    if x.layout.shard_axes(_BATCH)[-1:] != (cube.rows,) or x.layout.get(cube.columns) != Shard(len(x.shape) - contract):
        raise LayoutError(f"{x.name} as {x.layout} does not lie as a product over {cube} takes it")
    attributes: dict[str, Any] = {"contract": contract, "transposed": transposed}
    kind = Kind.ACTIVATION if cube.save_gathered else Kind.WORKSPACE
    whole = _gathered(t, name, x, cube.rows, _BATCH, kind, after=x)
    panel = _gathered(t, name, weight.value, cube.weight, cut, kind, after=x)
    layout = product_layout(whole, panel, contract, transposed)
    (partial,) = t.compute(f"{name}.terms", "matmul", (whole, panel), (layout,), kind=Kind.WORKSPACE, **attributes)
    y = t.scatter_sum(partial, cube.columns, _BATCH, _with_rows(layout, cube.columns), Kind.ACTIVATION)
    if bias is not None:
        t.update(f"{name}.bias", "add_bias", (bias.value,), (y,))
        t.program.set_gradient_layout(bias, summed_layout(bias, y))
    own_dims = range(len(x.shape) - contract, len(x.shape))
    t.program.set_gradient_layout(weight, summed_layout(weight, x, own_dims))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        label = f"{name}.backward"
        given = _gathered(r, label, dy, cube.columns, _BATCH, Kind.WORKSPACE, after=dy)
        taken, again = panel, whole
        if not cube.save_gathered:
            taken = _gathered(r, label, weight.value, cube.weight, cut, Kind.WORKSPACE, after=dy)
            again = _gathered(r, label, x, cube.rows, _BATCH, Kind.WORKSPACE, after=dy)
        (terms,) = r.compute(
            f"{name}.input_gradient", "matmul_input_gradient", (given, taken), (input_gradient_layout(whole, panel),),
            kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        dx = r.scatter_sum(terms, cube.rows, _BATCH, x.layout, Kind.WORKSPACE)
        (product,) = r.compute(
            f"{name}.weight_gradient", "matmul_weight_gradient", (again, given), (panel.layout,),
            kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        _accumulate(r, name, product, weight, cube, cut)
        if bias is not None:
            r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))
        return [dx]

    t.record((x,), (y,), backward)
    return y


def _gathered(t: TaskTracer, name: str, x: Tensor, axis: str, dim: int, kind: Kind, *, after: Tensor) -> Tensor:
    """Return a gathered tensor. The all_gather starts after ``after`` exists, as a library issues it after that kernel.

    Several uses of one table gather it under different names.
    """
    if after is not x:
        t.emit(Compute(t.unique(f"{name}.begin_{axis}"), "delay", (after.name,), (), {"duration_s": 0.0}, axis))
    label, shape = t.unique(f"{name}.gather_{axis}"), list(x.shape)
    shape[dim] *= t.mesh.degree(axis)
    y = t.program.tensor(Buffer(label + t.part, tuple(shape), x.dtype, kind, t.scope), x.layout.without(axis))
    t.emit(Collective(label, CollectiveKind.ALL_GATHER, (axis,), (x.name,), (y.name,), axis, dim=dim))
    return y


def _weight_dim(w: Tensor, cube: Cube) -> int:
    """Return the dimension along which a weight is gathered."""
    place = w.layout.get(cube.weight)
    if not isinstance(place, Shard) or w.layout.shard_axes(place.dim)[-1] != cube.weight:
        raise LayoutError(f"{w.name} as {w.layout} is not cut last over {cube.weight!r}")
    return place.dim


def _with_rows(layout: Layout, axis: str) -> Layout:
    """Return the layout after a reduce_scatter over an axis along the batch, inside the slices of other axes."""
    return layout.without(axis).with_(axis, Shard(_BATCH))


def _accumulate(r: TaskTracer, name: str, product: Tensor, weight: Parameter, cube: Cube, dim: int) -> None:
    """Emit the sum of a weight's gradient, and its addition to the total on the stream of the communication."""
    own = r.scatter_sum(product, cube.weight, dim, weight.value.layout, Kind.WORKSPACE)
    label, total = r.unique(f"{name}.weight_gradient.add"), weight.gradient.name
    r.emit(Compute(label, "add", (own.name, total), (total,), {}, cube.weight))


def cube_embedding(t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, cube: Cube) -> Tensor:
    """Return the ids' rows of table[V, h], in the layout of the input of a product over ``cube``.

    The table's words are sharded over ``cube.rows`` and ``cube.weight``, its columns over ``cube.columns``, and the
    rows of the ids over ``cube.weight`` alone. So every rank looks up its own words, and a sum over ``cube.rows``
    combines the results.
    """
    panel = _gathered(t, name, table.value, cube.weight, 0, Kind.WORKSPACE, after=ids)
    layout = ids.layout.with_(cube.columns, Shard(2)).with_(cube.rows, PARTIAL)
    attributes = {"vocab_axes": (cube.rows,)}
    (terms,) = t.compute(f"{name}.terms", "embedding", (ids, panel), (layout,), kind=Kind.WORKSPACE, **attributes)
    lies = (*ids.layout.placements, (cube.rows, Shard(_BATCH)), (cube.columns, Shard(2)))
    y = t.scatter_sum(terms, cube.rows, _BATCH, Layout(lies), Kind.ACTIVATION)
    t.program.set_gradient_layout(table, summed_layout(table, ids))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        given = _gathered(r, f"{name}.backward", dy, cube.rows, _BATCH, Kind.WORKSPACE, after=dy)
        (product,) = r.compute(
            f"{name}.backward.zeros", "zeros", (), (panel.layout,), kind=Kind.WORKSPACE, shapes=(panel.shape,),
            dtype=given.dtype,
        )  # fmt: skip
        r.update(f"{name}.backward", "embedding_backward", (ids, given), (product,), **attributes)
        _accumulate(r, name, product, table, cube, 0)
        return [None]

    t.record((ids,), (y,), backward)
    return y
