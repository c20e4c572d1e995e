"""Linear layers that overlap their communication over an axis with their products, piece by piece (collective matmul).

There are two kinds. Gathered: an input that is cut along its rows travels around a ring of the axis's ranks, and each
piece is multiplied while the next one travels. Scattered: a product that is a sum over the axis is computed piece by
piece, and each piece is sent to its rank while the next one is computed. In backward the input gradient of a scattered
layer is computed like a gathered layer. The input gradient of a gathered layer is one product; meanwhile the input
travels again, and its reduce_scatter runs during the weight gradient. Sources: Wang et al. 2023, Overlap Communication
with Dependent Computation via Decomposition, ASPLOS; ring exchanges and final sum as in Transformer Engine's
tp_comm_overlap.
"""

from collections.abc import Sequence
from typing import Any

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.linear import PLAIN, Products, input_gradient_layout, product_layout
from sim.plan.functions.ring import Ring
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import Layout, Partial, Shard
from sim.plan.words.op import Compute, Direction

Piece = tuple[Tensor, ...]
"""A piece of an activation as an operand: the tensor, and its scale if there is one."""


def gathered_linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    axis: str,
    products: Products = PLAIN,
) -> Tensor:
    """Return ``linear`` of x, gathered by rows over ``axis`` piece by piece. Only the rank's own piece is kept."""
    whole = x.relaid(x.layout.without(axis))
    layout, cuts = product_layout(whole, weight.value, 1, transposed=False), _cuts(t, axis)
    own, factor = products.piece(t, f"{name}.input", x), products.weight(t, weight)
    attributes = {"contract": 1, "transposed": False, **cuts, **products.attributes(x)}
    pieces = _around(Ring(axis, Direction.FORWARD), t, f"{name}.input", own, Kind.ACTIVATION)
    added = factor[0] if bias is None else (*factor[0], bias.value)
    y = _filled(t, name, f"{products.prefix}matmul_piece", pieces, added, layout, Kind.ACTIVATION, attributes)
    t.program.set_gradient_layout(weight, summed_layout(weight, whole, (len(x.shape) - 1,)))
    if bias is not None:
        t.program.set_gradient_layout(bias, summed_layout(bias, whole))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        given = products.gradient(r, name, dy)
        again = _around(Ring(axis, Direction.BACKWARD), r, f"{name}.regathered", own, Kind.WORKSPACE)
        if not products.weight_gradient.overlapped:
            of_parameters(r, again, given[1], dy)
        (dx,) = r.compute(
            f"{name}.input_gradient", f"{products.prefix}matmul_input_gradient", (*given[0], *factor[1]),
            (input_gradient_layout(whole, weight.value),), kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        if products.weight_gradient.overlapped:
            of_parameters(r, again, given[1], dy)
        return [dx]

    def of_parameters(r: TaskTracer, pieces: Sequence[Piece], given: Piece, dy: Tensor) -> None:
        factors = (*_flat(products.turned(r, f"{name}.regathered", pieces)), *given)
        _add_weight_gradient(r, name, factors, weight, "x", products, attributes)
        if bias is not None:
            r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))

    t.record((x,), (y,), backward)
    return y


def scattered_linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weight: Parameter,
    *,
    axis: str,
    contract: int = 1,
    products: Products = PLAIN,
) -> Tensor:
    """Return ``linear`` of x, reduce-scattered over ``axis`` along its rows, piece by piece.

    Raises LayoutError if the product is not partial over ``axis``.
    """
    partial = product_layout(x, weight.value, contract, transposed=False)
    if not isinstance(partial.get(axis), Partial):
        raise LayoutError(f"{name}: the product of {x.name} and {weight.source} is no sum over {axis!r}")
    layout, cuts = partial.without(axis).with_(axis, Shard(0)), _cuts(t, axis)
    taken, factor = products.activation(t, name, x), products.weight(t, weight)
    attributes = {"contract": contract, "transposed": False, **cuts, **products.attributes(x)}
    terms = _scattered(t, name, f"{products.prefix}matmul_rows", (*taken[0], *factor[0]), partial, attributes, axis)
    (y,) = t.compute(f"{name}.sum", "add", terms, (layout,))
    t.program.set_gradient_layout(weight, summed_layout(weight, x, range(len(x.shape) - contract, len(x.shape))))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        own = products.gradient_piece(r, f"{name}.output_gradient", only(gradients))
        pieces = _around(Ring(axis, Direction.BACKWARD), r, f"{name}.output_gradient", own, Kind.WORKSPACE)
        label, kernel = f"{name}.input_gradient", f"{products.prefix}matmul_piece_input_gradient"
        dx = _filled(
            r, label, kernel, pieces, factor[1], input_gradient_layout(x, weight.value), Kind.WORKSPACE, attributes
        )
        kept = products.kept(r, name, x, taken)
        factors = (*kept, *_flat(products.turned(r, f"{name}.output_gradient", pieces)))
        _add_weight_gradient(r, name, factors, weight, "dy", products, attributes)
        return [dx]

    t.record((x,), (y,), backward)
    return y


def _around(ring: Ring, t: TaskTracer, name: str, own: Piece, kind: Kind) -> list[Piece]:
    """Return the pieces of all ranks, the own one first, then that of the next rank. Each piece is forwarded.

    Pieces move one rank back per step.
    """
    pieces, likes = [own], _likes(ring, own)
    for number in range(1, t.mesh.degree(ring.axis)):
        pieces.append(_exchanged(ring, t, f"{name}.piece{number}", pieces[-1], -1, kind, likes))
    return pieces


def _likes(ring: Ring, piece: Piece) -> Piece:
    """Return what a piece is like once it is received."""
    return tuple([x.relaid(x.layout.without(ring.axis)) for x in piece])


def _exchanged(ring: Ring, t: TaskTracer, name: str, piece: Piece, ahead: int, kind: Kind, likes: Piece) -> Piece:
    """Send a piece ``ahead`` places forward; return the piece received from the rank as far behind, like ``likes``."""
    ring.send(t, name, piece, ahead)
    return ring.receive(t, name, likes, ("", ".scale")[: len(piece)], -ahead, kind)


def _cuts(t: TaskTracer, axis: str) -> dict[str, Any]:
    return {"pieces": t.mesh.degree(axis), "axes": (axis,)}


def _flat(pieces: Sequence[Piece]) -> Piece:
    return tuple(tensor for piece in pieces for tensor in piece)


def _filled(
    t: TaskTracer,
    name: str,
    kernel: str,
    pieces: Sequence[Piece],
    factors: Piece,
    layout: Layout,
    kind: Kind,
    attributes: dict[str, Any],
) -> Tensor:
    """Return the product of all pieces, in order of arrival: the first one allocates it, the others fill it."""
    first, *others = pieces
    (y,) = t.compute(name, kernel, (*first, *factors), (layout,), kind=kind, piece=0, fills=False, **attributes)
    for number, piece in enumerate(others, start=1):
        told = {**attributes, "piece": number, "fills": True}
        reads = tuple(tensor.name for tensor in (*piece, *factors, y))
        t.emit(Compute(t.unique(f"{name}.piece{number}"), kernel, reads, (y.name,), told))
    return y


def _scattered(
    t: TaskTracer, name: str, kernel: str, operands: Piece, layout: Layout, attributes: dict[str, Any], axis: str
) -> list[Tensor]:
    """Return the terms of this rank's rows of a product: its own and the received ones; send away other rows."""
    ring = Ring(axis, Direction.FORWARD)
    terms: list[Tensor] = []
    likes: Piece = ()
    count = t.mesh.degree(axis)
    for number in (*range(1, count), 0):
        label = f"{name}.piece{number}" if number else name
        (made,) = t.compute(label, kernel, operands, (layout,), kind=Kind.WORKSPACE, piece=number, **attributes)
        label = f"{name}.term{number}"
        likes = likes or _likes(ring, (made,))
        terms += _exchanged(ring, t, label, (made,), number, Kind.WORKSPACE, likes) if number else [made]
    return terms


def _add_weight_gradient(
    r: TaskTracer,
    name: str,
    factors: Piece,
    weight: Parameter,
    in_pieces: str,
    products: Products,
    attributes: dict[str, Any],
) -> None:
    """Emit one product of all rows that adds to a weight's gradient. One operand is a list of pieces."""
    kernel = f"{products.prefix}matmul_pieces_weight_gradient"
    products.weight_gradient.emit(r, name, kernel, factors, weight, in_pieces=in_pieces, **attributes)
