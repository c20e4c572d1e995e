"""An expert layer on symbolic tensors: gate, dispatch, exchange, grouped products, combination.

Every rank has C slots for each of E experts (drop and pad; Lepikhin et al. 2021, GShard). A dispatched tensor is
[E, C, h]: its first dimension is the experts, its second the slots of all ranks from which tokens come. An all_to_all
changes its sharding from slots to experts, and another one changes it back. All functions are linear in the tokens, so
partial gradients pass through them unsummed.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import asdict

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.linear import Products, input_gradient_layout
from sim.plan.functions.rows import Rows as TokenRows
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import PARTIAL, Layout, Shard
from sim.plan.words.op import Collective, CollectiveKind


class RouterProducts(Products, frozen=True):
    """The products of a router: computed in at least 32 bits, from operands in their own types."""

    prefix: ClassVar[str] = "router_"


class Routes(Struct, frozen=True):
    """The choices of every token: the slots of its experts and the weights of their outputs, both [s, b, k]."""

    weights: Tensor
    slots: Tensor
    num_experts: int
    capacity: int
    groups: "GroupSlots | None" = None
    """Where a token is sent once for all its experts."""


class GroupSlots(Struct, frozen=True):
    """The slots [s, b, 1] of every token in the one group of experts that it is sent to."""

    slots: Tensor
    num_groups: int
    capacity: int


class Near(Struct, frozen=True):
    """Equal groups of experts on the ranks of ``axis``, and how many tokens of a rank may choose outside its own."""

    num_groups: int
    axis: str
    most_outside: int


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
    """Return the choices of logits[s, b, E]: ``top_k`` experts per token, and their slots while slots are left.

    ``capacity``: slots per expert.
    ``balanced``: choices go to the experts in turn and ignore the logits.
    ``forced``: number of this rank's choices of each expert, which ignore the logits; empty: not forced.
    ``balance_loss``: coefficient of the balance loss. Each token adds the coefficient times E sum_e f_e p_e to the
    loss. f_e is the fraction of choices of expert e, and p_e is the token's softmax (Fedus et al. 2021, equation 4,
    over all choices).
    """
    attributes: dict[str, Any] = {"top_k": top_k, "capacity": capacity, "balanced": balanced}
    if forced:
        attributes["forced"] = tuple(forced)
    return _routed(t, name, "route", logits, balance_loss, **attributes)


def route_in_groups(t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int) -> Routes:
    """Return the choice of the best expert in each of ``top_k`` groups, with its weight in the group's softmax."""
    weights, experts, slots = _choice(t, name, "route_k_top_1", logits, top_k=top_k, capacity=capacity)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_k_top_1_backward", (only(gradients), logits, experts), (logits.layout,),
            kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)
    return Routes(weights, slots, logits.shape[-1], capacity)


def route_limited(
    t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int, limit: tuple[int, int],
    forced: Sequence[int] = (), balance_loss: float,
) -> Routes:  # fmt: skip
    """Return the choices of ``route`` from the best groups of experts: those with the largest sums of best scores.

    ``limit``: number of groups, and number of groups from which a token chooses. ``forced``: see ``route``.
    """
    groups: dict[str, Any] = {"num_groups": limit[0], "top_groups": limit[1]}
    if forced:
        groups |= {"forced": tuple(forced), "balanced": False}
        return _routed(t, name, "route", logits, balance_loss, top_k=top_k, capacity=capacity, **groups)
    return _routed(t, name, "route_group_limited", logits, balance_loss, top_k=top_k, capacity=capacity, **groups)


def route_near(
    t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int, near: Near, forced: Sequence[int],
    balance_loss: float,
) -> Routes:  # fmt: skip
    """Return the choices of ``route``, of which few are outside the rank's own group (``gate: topology_aware``)."""
    if forced:
        return route(t, name, logits, top_k=top_k, capacity=capacity, forced=forced, balance_loss=balance_loss)
    return _routed(t, name, "route_near", logits, balance_loss, top_k=top_k, capacity=capacity, **asdict(near))


def route_assigned(t: TaskTracer, name: str, logits: Tensor, *, capacity: int) -> Routes:
    """Return one expert for each token, by the assignment to slots whose scores add up to most (``gate: base``)."""
    return _routed(t, name, "route_base", logits, 0.0, top_k=1, capacity=capacity)


def route_drawn(
    t: TaskTracer, name: str, logits: Tensor, rows: TokenRows, *, capacity: int, balance_loss: float
) -> Routes:
    """Return the two best experts of each token. The second choice gets a slot at random (``gate: gshard``).

    ``rows``: positions of the tokens in their sequences. Only first choices count in the balance loss.
    """
    weights, experts, slots = _choice(
        t, name, "route_gshard", logits, top_k=2, capacity=capacity, salt=name, **rows.attributes
    )
    record_choice(t, name, logits, weights, experts, balance_loss, balanced_choices=1)
    return Routes(weights, slots, logits.shape[-1], capacity)


def route_by_experts(t: TaskTracer, name: str, logits: Tensor, *, capacity: int) -> Routes:
    """Return the choices of experts: each chooses ``capacity`` tokens. Weights are the softmax over all experts."""
    weights, slots = t.compute(
        name, "route_expert_choice", (logits,), (logits.layout,) * 2, labels=("weights", "slots"), capacity=capacity
    )
    _record_softmax(t, name, logits, weights, temperature=1.0)
    return Routes(weights, slots, logits.shape[-1], capacity)


class Cooling(Struct, frozen=True):
    """The setting of a Gumbel softmax: its temperature, and the threshold of the weights that count.

    ``hard``: only the best expert of a token counts.
    ``expected_choices``: mean number of experts that count, over all tokens.
    """

    temperature: float
    threshold: float
    hard: bool
    expected_choices: int


def route_cooling(t: TaskTracer, name: str, logits: Tensor, rows: TokenRows, cooling: Cooling, capacity: int) -> Routes:
    """Return a variable number of experts per token, weighted by a Gumbel softmax (``gate: dense_to_sparse``).

    ``rows``: positions of the tokens in their sequences.
    """
    weights, slots = t.compute(
        name, "route_dense_to_sparse", (logits,), (logits.layout,) * 2, labels=("weights", "slots"),
        capacity=capacity, salt=name, **asdict(cooling), **rows.attributes,
    )  # fmt: skip
    _record_softmax(t, name, logits, weights, cooling.temperature)
    return Routes(weights, slots, logits.shape[-1], capacity)


def _record_softmax(t: TaskTracer, name: str, logits: Tensor, weights: Tensor, temperature: float) -> None:
    """Record a gate on the tape. Its weights are the softmax of all logits at a temperature."""

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_softmax_backward", (only(gradients), r.saved(weights)), (logits.layout,),
            kind=Kind.WORKSPACE, temperature=temperature,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)


def route_words(t: TaskTracer, name: str, ids: Tensor, dtype: str, *, num_experts: int, capacity: int) -> Routes:
    """Return the fixed expert of every token id[s, b], with the weight 1 of type ``dtype``."""
    weights, _, slots = t.compute(
        name, "route_hash", (ids,), (ids.layout,) * 3, labels=("weights", "experts", "slots"),
        num_experts=num_experts, capacity=capacity, salt=name, dtype=dtype,
    )  # fmt: skip
    return Routes(weights, slots, num_experts, capacity)


def _routed(t: TaskTracer, name: str, kernel: str, logits: Tensor, balance_loss: float, **attributes: Any) -> Routes:
    """Emit the kernel of a gate. Its weights are the softmax over the chosen experts."""
    weights, experts, slots = _choice(t, name, kernel, logits, **attributes)
    record_choice(t, name, logits, weights, experts, balance_loss)
    return Routes(weights, slots, logits.shape[-1], attributes["capacity"])


def _choice(t: TaskTracer, name: str, kernel: str, logits: Tensor, **attributes: Any) -> Sequence[Tensor]:
    """Emit the kernel of a gate; return its weights, experts and slots."""
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
    """Record the choice on the tape: the gradient of the logits comes from the weights and the balance loss."""

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "route_backward", (only(gradients), logits, experts), (logits.layout,),
            kind=Kind.WORKSPACE, balance_loss=balance_loss, **attributes,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)


def gate_tokens(t: TaskTracer, name: str, x: Tensor, gate: Tensor) -> Tensor:
    """Return x[s, b, h] with each token multiplied by the sigmoid of its gate[s, b, 1]; x may be partial."""
    (y,) = t.compute(name, "gate_tokens", (x, gate), (x.layout,))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        layouts = (only(gradients).layout, partial_over(gate.layout, x.layout.partial_axes))
        return r.compute(
            f"{name}.backward", "gate_tokens_backward", (only(gradients), r.saved(x), r.saved(gate)), layouts,
            labels=("tokens", "gates"), kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((x, gate), (y,), backward)
    return y


def dispatch(t: TaskTracer, name: str, x: Tensor, routes: Routes | GroupSlots, layout: Layout) -> Tensor:
    """Return x[s, b, h] in the slots of its choices, [E, C, h], which lie as ``layout`` says."""
    (y,) = t.compute(name, "dispatch", (x, routes.slots), (layout,), **slot_attributes(routes))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        layout = partial_over(x.layout, dy.layout.partial_axes)
        return r.compute(f"{name}.backward", "dispatch_backward", (dy, routes.slots), (layout,), kind=Kind.WORKSPACE)

    t.record((x,), (y,), backward, settles=False)
    return y


def slot_attributes(routes: Routes | GroupSlots) -> dict[str, Any]:
    """Return the attributes of a dispatch: of how many experts, or groups of them, the slots are, and how many."""
    if isinstance(routes, GroupSlots):
        return {"num_experts": routes.num_groups, "capacity": routes.capacity}
    return {"num_experts": routes.num_experts, "capacity": routes.capacity}


def slots_layout(x: Tensor, expert_axis: str) -> Layout:
    """Return the layout of the slots [E, C, h] of tokens x[s, b, h]: C counts the slots of all ranks."""
    slots = Layout(tuple((axis, Shard(1)) for axis, p in x.layout.placements if isinstance(p, Shard)))
    return slots.with_(expert_axis, Shard(1)) if expert_axis else slots


def exchange(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Return a dispatched tensor sharded along experts (``dim`` 0) or slots (1). Backward exchanges back.

    If a rank has several experts, the received tokens are sorted by expert, and sorted back.
    Raises LayoutError unless ``axis`` shards the other one of the two dimensions.
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
    """Emit an all_to_all of equal parts of x along an axis; received parts are in rank order."""
    name = t.unique(f"{x.name}.all_to_all")
    y = t.program.tensor(Buffer(name + t.part, x.shape, x.dtype, kind, t.scope), x.layout)
    t.emit(Collective(name, CollectiveKind.ALL_TO_ALL, (axis,), (x.name,), (y.name,), axis, dim=0))
    return y


def combine(t: TaskTracer, name: str, y: Tensor, routes: Routes) -> Tensor:
    """Return the weighted sum of y[E, C, h] over the choices of every token, [s, b, h].

    The result is partial over each axis over which y is partial.
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


def collect(t: TaskTracer, name: str, y: Tensor, slots: GroupSlots, layout: Layout) -> Tensor:
    """Return the sum of the rows y[G, C, h] of every token, [s, b, h]; the conjugate of a dispatch.

    ``layout``: of the tokens. The result is partial over each axis over which y is partial.
    """
    (out,) = t.compute(name, "dispatch_backward", (y, slots.slots), (partial_over(layout, y.layout.partial_axes),))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "dispatch", (only(gradients), slots.slots),
            (y.layout.without(*y.layout.partial_axes),), kind=Kind.WORKSPACE, **slot_attributes(slots),
        )  # fmt: skip

    t.record((y,), (out,), backward)
    return out


def partial_over(layout: Layout, axes: Sequence[str]) -> Layout:
    """Return a layout with the named axes partial."""
    for axis in axes:
        layout = layout.with_(axis, PARTIAL)
    return layout


class Rows(Struct, frozen=True):
    """The numbers of rows per expert. The rows of all experts lie one after the other in one group.

    ``counts``: rows by source rank and expert, as received from the source ranks. ``of_experts``: rows of each of this
    rank's experts.
    """

    counts: Tensor
    of_experts: tuple[int, ...]


def grouped_linear(
    t: TaskTracer, name: str, x: Tensor, weight: Parameter, products: Products, rows: Rows | None = None
) -> Tensor:
    """Return x[g, m, k] times weight[g, k, *n]: one product per expert, in one kernel.

    ``rows``: numbers of rows per expert, if x is [1, m, k]; None: every expert has m rows.
    Raises LayoutError if the layouts of x and weight do not fit a product.
    """
    kernel = f"{products.prefix}{'grouped' if rows is None else 'ragged'}_matmul"
    attributes: dict[str, Any] = {} if rows is None else {"rows": rows.of_experts}
    attributes |= products.attributes(x)
    counts = () if rows is None else (rows.counts,)
    layout = _grouped_layout(x, weight.value, experts_dim=0 if rows is None else 1)
    taken, factor = products.activation(t, name, x), products.weight(t, weight)
    (y,) = t.compute(name, kernel, (*taken[0], *factor[0], *counts), (layout,), **attributes)
    t.program.set_gradient_layout(weight, summed_layout(weight, x, (0, 2)))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy, kept = only(gradients), products.kept(r, name, x, taken)
        given = products.gradient(r, name, dy)
        operands = (*kept, *given[1], *counts)
        if not products.weight_gradient.overlapped:
            of_weight(r, operands)
        dx = r.compute(
            f"{name}.input_gradient", f"{kernel}_input_gradient", (*given[0], *factor[1], *counts),
            (input_gradient_layout(x, weight.value),), kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        if products.weight_gradient.overlapped:
            of_weight(r, operands)
        return dx

    def of_weight(r: TaskTracer, operands: Sequence[Tensor]) -> None:
        products.weight_gradient.emit(
            r, name, f"{kernel}_weight_gradient", operands, weight, grouped=True, **attributes
        )

    t.record((x,), (y,), backward)
    return y


def _grouped_layout(x: Tensor, w: Tensor, experts_dim: int) -> Layout:
    """Return the layout of x w: experts and rows as in x, columns as in w.

    ``experts_dim``: the dimension of x along which ranks have different experts.
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
