"""A layer of experts on symbolic tensors: the choice of experts, dispatch, exchange, grouped products, combination.

Every rank has C slots for each of E experts: a dispatched tensor is [E, C, h], its first dimension the experts, its
second the slots of all ranks that tokens come from (drop and pad; Lepikhin et al. 2021, GShard). So the ranks that
share out the experts change from slots to experts, and back, by an all_to_all. All of it is linear in the tokens:
gradients that are sums still to be made go through as they come.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.linear import Products, WeightGradient, input_gradient_layout
from sim.plan.functions.rows import Rows as TokenRows
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import PARTIAL, Layout, Shard
from sim.plan.words.op import Collective, CollectiveKind


@dataclass(frozen=True, slots=True)
class RouterProducts(Products):
    """How the router's products are made: in 32 bits at least, of operands as they are."""

    prefix: ClassVar[str] = "router_"


@dataclass(frozen=True, slots=True)
class Routes:
    """The choices of every token: the slots of its experts and the weights of their outputs, both [s, b, k]."""

    weights: Tensor
    slots: Tensor
    num_experts: int
    capacity: int


def filled_slots(num_choices: int, num_experts: int, capacity: int) -> int:
    """Return the number of slots with a token, over all experts, if choices are spread evenly."""
    share, rest = divmod(num_choices, num_experts)
    return rest * min(share + 1, capacity) + (num_experts - rest) * min(share, capacity)


def route(
    t: TaskTracer,
    name: str,
    logits: Tensor,
    *,
    top_k: int,
    capacity: int,
    balanced: bool = False,
    forced: Sequence[int] = (),
    balance_loss: float = 0.0,
) -> Routes:
    """Return the choices of logits[s, b, E]: ``top_k`` experts each, and their slots as far as there are any.

    ``capacity``: slots per expert. Whatever the logits say, ``balanced`` deals experts out in turn, and ``forced`` has
    this rank choose every expert so many times; empty: not. ``balance_loss``: times E sum_e f_e p_e each token adds to
    the loss, f_e being the part of the choices that fell on expert e, and p_e the token's share of the softmax (Fedus
    et al. 2021, equation 4, over all choices).
    """
    attributes: dict[str, Any] = {"top_k": top_k, "capacity": capacity, "balanced": balanced}
    if forced:
        attributes["forced"] = tuple(forced)
    return _routed(t, name, "route", logits, balance_loss, **attributes)


def route_in_groups(t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int) -> Routes:
    """Return the choice of the best expert in each of ``top_k`` groups, weighed by its softmax there."""
    weights, experts, slots = _choice(t, name, "route_k_top_1", logits, top_k=top_k, capacity=capacity)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_k_top_1_backward", (only(gradients), logits, experts), (logits.layout,),
            kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)
    return Routes(weights, slots, logits.shape[-1], capacity)


def route_limited(
    t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int, limit: tuple[int, int], balance_loss: float
) -> Routes:
    """Return the choices of ``route`` from some groups of experts alone, those whose best scores add up to most.

    ``limit``: how many groups there are, and how many of them a token chooses from.
    """
    groups = {"num_groups": limit[0], "top_groups": limit[1]}
    return _routed(t, name, "route_group_limited", logits, balance_loss, top_k=top_k, capacity=capacity, **groups)


def route_assigned(t: TaskTracer, name: str, logits: Tensor, *, capacity: int) -> Routes:
    """Return one expert for each token, by the assignment to slots whose scores add up to most (``gate: base``)."""
    return _routed(t, name, "route_base", logits, 0.0, top_k=1, capacity=capacity)


def route_drawn(
    t: TaskTracer, name: str, logits: Tensor, rows: TokenRows, *, capacity: int, balance_loss: float
) -> Routes:
    """Return the two best experts of each token, of which the second gets a slot at random (``gate: gshard``).

    ``rows``: which tokens of their sequences these are. In the balance loss first choices count alone.
    """
    weights, experts, slots = _choice(
        t, name, "route_gshard", logits, top_k=2, capacity=capacity, salt=name, **rows.attributes
    )
    record_choice(t, name, logits, weights, experts, balance_loss, balanced_choices=1)
    return Routes(weights, slots, logits.shape[-1], capacity)


def route_by_experts(t: TaskTracer, name: str, logits: Tensor, *, capacity: int) -> Routes:
    """Return the tokens that experts choose, ``capacity`` each; the weights are the softmax over all experts."""
    weights, slots = t.compute(
        name, "route_expert_choice", (logits,), (logits.layout,) * 2, labels=("weights", "slots"), capacity=capacity
    )
    _record_softmax(t, name, logits, weights, temperature=1.0)
    return Routes(weights, slots, logits.shape[-1], capacity)


@dataclass(frozen=True, slots=True)
class Cooling:
    """A Gumbel softmax at a temperature, of which weights above the threshold count, or the ``hard`` best alone.

    ``expected_choices``: experts that count, over all tokens, on the mean.
    """

    temperature: float
    threshold: float
    hard: bool
    expected_choices: int


def route_cooling(t: TaskTracer, name: str, logits: Tensor, rows: TokenRows, cooling: Cooling, capacity: int) -> Routes:
    """Return any number of experts for each token, weighed by a Gumbel softmax (``gate: dense_to_sparse``).

    ``rows``: which tokens of their sequences these are.
    """
    weights, slots = t.compute(
        name, "route_dense_to_sparse", (logits,), (logits.layout,) * 2, labels=("weights", "slots"),
        capacity=capacity, salt=name, **asdict(cooling), **rows.attributes,
    )  # fmt: skip
    _record_softmax(t, name, logits, weights, cooling.temperature)
    return Routes(weights, slots, logits.shape[-1], capacity)


def _record_softmax(t: TaskTracer, name: str, logits: Tensor, weights: Tensor, temperature: float) -> None:
    """Put a gate on the tape whose weights are the softmax of all logits at a temperature."""

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_softmax_backward", (only(gradients), r.saved(weights)), (logits.layout,),
            kind=Kind.WORKSPACE, temperature=temperature,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)


def route_words(t: TaskTracer, name: str, ids: Tensor, dtype: str, *, num_experts: int, capacity: int) -> Routes:
    """Return the fixed expert of every token id[s, b], with the weight 1 in a type."""
    weights, _, slots = t.compute(
        name, "route_hash", (ids,), (ids.layout,) * 3, labels=("weights", "experts", "slots"),
        num_experts=num_experts, capacity=capacity, salt=name, dtype=dtype,
    )  # fmt: skip
    return Routes(weights, slots, num_experts, capacity)


def _routed(t: TaskTracer, name: str, kernel: str, logits: Tensor, balance_loss: float, **attributes: Any) -> Routes:
    """Emit the kernel of a gate whose weights are the softmax of what was chosen."""
    weights, experts, slots = _choice(t, name, kernel, logits, **attributes)
    record_choice(t, name, logits, weights, experts, balance_loss)
    return Routes(weights, slots, logits.shape[-1], attributes["capacity"])


def _choice(t: TaskTracer, name: str, kernel: str, logits: Tensor, **attributes: Any) -> Sequence[Tensor]:
    """Emit the kernel of a gate; return weights, experts and slots."""
    labels = ("weights", "experts", "slots")
    return t.compute(name, kernel, (logits,), (logits.layout,) * 3, labels=labels, **attributes)


def record_choice(
    t: TaskTracer,
    name: str,
    logits: Tensor,
    weights: Tensor,
    experts: Tensor,
    balance_loss: float,
    **attributes: Any,
) -> None:
    """Put the choice of experts on the tape: the logits' gradient comes from the weights and from the balance loss."""

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_backward", (only(gradients), logits, experts), (logits.layout,),
            kind=Kind.WORKSPACE, balance_loss=balance_loss, **attributes,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)


def gate_tokens(t: TaskTracer, name: str, x: Tensor, gate: Tensor) -> Tensor:
    """Return x[s, b, h], each token weighed by the sigmoid of its gate[s, b, 1]; x may be a sum to be made."""
    (y,) = t.compute(name, "gate_tokens", (x, gate), (x.layout,))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        layouts = (only(gradients).layout, partial_over(gate.layout, x.layout.partial_axes))
        return r.compute(
            f"{name}.backward", "gate_tokens_backward", (only(gradients), r.saved(x), r.saved(gate)), layouts,
            labels=("tokens", "gates"), kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((x, gate), (y,), backward)
    return y


def dispatch(t: TaskTracer, name: str, x: Tensor, routes: Routes, expert_axis: str = "") -> Tensor:
    """Return x[s, b, h] in the slots of its choices, [E, C, h]; ``expert_axis``: that of the ranks that share them."""
    attributes: dict[str, Any] = {"num_experts": routes.num_experts, "capacity": routes.capacity}
    (y,) = t.compute(name, "dispatch", (x, routes.slots), (slots_layout(x, expert_axis),), **attributes)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        layout = partial_over(x.layout, dy.layout.partial_axes)
        return r.compute(f"{name}.backward", "dispatch_backward", (dy, routes.slots), (layout,), kind=Kind.WORKSPACE)

    t.record((x,), (y,), backward, settles=False)
    return y


def slots_layout(x: Tensor, expert_axis: str) -> Layout:
    """Return the layout of slots [E, C, h] that tokens x[s, b, h] are dispatched to: all ranks' slots along C."""
    slots = Layout(tuple((axis, Shard(1)) for axis, p in x.layout.placements if isinstance(p, Shard)))
    return slots.with_(expert_axis, Shard(1)) if expert_axis else slots


def exchange(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Return a dispatched tensor laid along the experts (``dim`` 0) or along the slots (1); backward exchanges back.

    If a rank has several experts, the received tokens are sorted by expert, and back.
    Raises LayoutError if ``axis`` does not cut the other of the two dimensions.
    """
    old = x.layout.get(axis)
    if old != Shard(1 - dim):
        raise LayoutError(f"{x.name} lies {old} over {axis!r}, and is to be exchanged from {Shard(1 - dim)}")
    y = _exchange(t, x, axis, dim, Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [_exchange(r, only(gradients), axis, 1 - dim, Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def _exchange(t: TaskTracer, x: Tensor, axis: str, dim: int, kind: Kind) -> Tensor:
    parts, layout = t.mesh.degree(axis), x.layout.without(axis).with_(axis, Shard(dim))
    if x.shape[0] == (parts if dim == 0 else 1):
        return t.exchange(x, axis, dim, kind)
    if dim == 0:
        received = all_to_all(t, x, axis, Kind.WORKSPACE)
        (y,) = t.compute(f"{x.name}.regroup", "regroup", (received,), (layout,), kind=kind, parts=parts, by_expert=True)
        return y
    (sent,) = t.compute(
        f"{x.name}.regroup", "regroup", (x,), (x.layout,), kind=Kind.WORKSPACE, parts=parts, by_expert=False
    )
    return all_to_all(t, sent, axis, kind).relaid(layout)


def all_to_all(t: TaskTracer, x: Tensor, axis: str, kind: Kind) -> Tensor:
    """Send every rank of an axis its experts' part of x; parts are equal, and what comes lies in the order of ranks."""
    name = t.unique(f"{x.name}.all_to_all")
    y = t.program.tensor(Buffer(name + t.part, x.shape, x.dtype, kind, t.scope), x.layout)
    t.emit(Collective(name, CollectiveKind.ALL_TO_ALL, (axis,), (x.name,), (y.name,), axis, dim=0))
    return y


def combine(t: TaskTracer, name: str, y: Tensor, routes: Routes) -> Tensor:
    """Return the weighted sum of y[E, C, h] over the choices of every token, [s, b, h].

    Over an axis where y is a sum still to be made, so is the result.
    """
    weights, partial = routes.weights, y.layout.partial_axes
    (out,) = t.compute(name, "combine", (y, weights, routes.slots), (partial_over(weights.layout, partial),))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        layouts = (y.layout.without(*partial), partial_over(weights.layout, partial))
        return r.compute(
            f"{name}.backward", "combine_backward", (only(gradients), y, weights, routes.slots), layouts,
            labels=("", "weights"), kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((y, weights), (out,), backward)
    return out


def partial_over(layout: Layout, axes: Sequence[str]) -> Layout:
    """Return a layout with the named axes partial."""
    for axis in axes:
        layout = layout.with_(axis, PARTIAL)
    return layout


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of experts of unequal numbers, which lie one expert after the other in one group.

    ``counts``: rows by source rank and expert, as they came from these ranks; ``of_experts``: of this rank's experts.
    """

    counts: Tensor
    of_experts: tuple[int, ...]


def grouped_linear(
    t: TaskTracer, name: str, x: Tensor, weight: Parameter, weight_gradient: WeightGradient, rows: Rows | None = None
) -> Tensor:
    """Return x[g, m, k] times weight[g, k, *n], a product per expert in one kernel.

    ``rows``: x is [1, m, k], and has so many rows of each expert; None: every expert has m.
    Raises LayoutError where the two do not lie as a product needs them.
    """
    kernel = "grouped_matmul" if rows is None else "ragged_matmul"
    attributes: dict[str, Any] = {} if rows is None else {"rows": rows.of_experts}
    counts = () if rows is None else (rows.counts,)
    layout = _grouped_layout(x, weight.value, experts_dim=0 if rows is None else 1)
    (y,) = t.compute(name, kernel, (x, weight.value, *counts), (layout,), **attributes)
    t.program.set_gradient_layout(weight, summed_layout(weight, x, (0, 2)))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        if not weight_gradient.overlapped:
            of_weight(r, dy)
        dx = r.compute(
            f"{name}.input_gradient", f"{kernel}_input_gradient", (dy, weight.value, *counts),
            (input_gradient_layout(x, weight.value),), kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        if weight_gradient.overlapped:
            of_weight(r, dy)
        return dx

    def of_weight(r: TaskTracer, dy: Tensor) -> None:
        operands = (x, dy, *counts)
        weight_gradient.emit(r, name, f"{kernel}_weight_gradient", operands, weight, grouped=True, **attributes)

    t.record((x,), (y,), backward)
    return y


def _grouped_layout(x: Tensor, w: Tensor, experts_dim: int) -> Layout:
    """Return the layout of x w: experts and rows lie as those of x, columns as those of w.

    ``experts_dim``: the dimension of x along which the ranks that share out experts have theirs.
    """
    layout = Layout(tuple((a, p) for a, p in x.layout.placements if isinstance(p, Shard) and p.dim < 2))
    for axis, placement in w.layout.placements:
        assert isinstance(placement, Shard)
        wanted = {0: Shard(experts_dim), 1: Shard(2)}.get(placement.dim)
        if x.layout.get(axis) != wanted:
            raise LayoutError(f"{x.name} lies {x.layout.get(axis)} over {axis!r}, and {w.name} {placement}")
        if placement.dim == 1:
            layout = layout.with_(axis, PARTIAL)
        elif placement.dim > 1:
            layout = layout.with_(axis, placement)
    return layout
