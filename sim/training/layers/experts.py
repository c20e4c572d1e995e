"""Experts in the place of a layer's MLP: router, dispatch, experts, combination.

The ranks of ``ep`` each hold E/ep experts, and exchange tokens with two all_to_all forward and two backward. Tensor
parallelism splits every expert as it splits an MLP, so its ranks route the same tokens alike; with sequence parallelism
each scores its own tokens, and the scores are gathered.
"""

from sim.plan.functions import basic as f
from sim.plan.functions import exact_experts as exact
from sim.plan.functions import experts as ex
from sim.plan.functions import grouped_experts as grouped
from sim.plan.functions import node_experts as relay
from sim.plan.functions import one_hot_experts as one_hot
from sim.plan.functions.linear import linear
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import REPLICATED, Layout, sharded
from sim.training.layers.gates import Gating
from sim.training.layers.layer import LayerBuilder
from sim.training.layers.mlp import two_products
from sim.training.layers.replicated_experts import replicated_experts
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS


def expert_mlp(b: LayerBuilder, t: TaskTracer, layer: int, x: Tensor) -> Tensor:
    """Return the output of a layer's experts for x: of each token's chosen experts, and of the shared ones."""
    spec, name = b.model.experts, f"layer{layer}"
    assert spec is not None
    scores = _scores(b, t, f"{name}.router", x, spec.num_experts) if spec.gating.has_scores else None
    gate = _scores(b, t, f"{name}.shared_gate", x, 1) if spec.shared_gate else None
    x = b.tensor.enter(t, x)
    gating = Gating(b, t, layer, spec, x, scores)
    if spec.replicas is not None:
        y = replicated_experts(b, t, gating)
    elif b.routing is not None and b.routing.num_nodes > 1:
        y = relayed_experts(b, t, gating)
    else:
        y = (exact_experts if spec.dispatch == "exact" else slotted_experts)(b, t, gating)
    if spec.shared_ffn_hidden_size:
        shared = two_products(b, t, f"{name}.shared", x, spec.shared_ffn_hidden_size)
        if gate is not None:
            shared = ex.gate_tokens(t, f"{name}.shared.gate_tokens", shared, gate)
        y = f.add(t, f"{name}.all_experts", y, shared)
    return b.tensor.leave(t, y)


def _scores(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, num_scores: int) -> Tensor:
    """Return so many scores of all tokens that are routed here, [s, b, scores], of those that are x."""
    shape = (b.model.hidden_size, num_scores)
    weight = t.program.parameter(f"{name}.weight", shape, REPLICATED, "normal")
    logits = linear(t, name, x, weight, products=ex.RouterProducts(b.products.weight_gradient))
    return b.tensor.enter(t, logits, again=False)


def slotted_experts(b: LayerBuilder, t: TaskTracer, gating: Gating) -> Tensor:
    """Return the weighted outputs of the chosen experts for x[s, b, h]; a sum over tensor-parallel ranks."""
    name, routes = f"layer{gating.layer}", gating.routes()
    axis = EXPERT_AXIS if t.mesh.degree(EXPERT_AXIS) > 1 else ""
    if gating.spec.permutation == "einsum":
        masks = one_hot.slot_masks(t, f"{name}.masks", routes, gating.x.dtype)
        y = one_hot.dispatch(t, f"{name}.dispatch", gating.x, masks, axis)
        y = _exchanged_experts(b, t, y, gating, axis)
        return one_hot.combine(t, f"{name}.combine", y, masks)
    if routes.groups is not None:
        return _grouped_experts(b, t, routes, gating, axis)
    y = ex.dispatch(t, f"{name}.dispatch", gating.x, routes, ex.slots_layout(gating.x, axis))
    y = _exchanged_experts(b, t, y, gating, axis)
    return ex.combine(t, f"{name}.combine", y, routes)


def _grouped_experts(b: LayerBuilder, t: TaskTracer, routes: ex.Routes, gating: Gating, axis: str) -> Tensor:
    """Return the same where a token is sent once, to the group of all its experts."""
    name = f"layer{gating.layer}"
    x, own = grouped.to_groups(t, name, gating.x, routes, axis)
    y = ex.dispatch(t, f"{name}.group.dispatch", x, own, x.layout)
    y = _experts(b, t, f"{name}.experts", y, gating.spec)
    y = ex.combine(t, f"{name}.group.combine", y, own)
    return grouped.from_groups(t, name, y, routes, axis)


def _exchanged_experts(b: LayerBuilder, t: TaskTracer, y: Tensor, gating: Gating, axis: str) -> Tensor:
    """Return every expert's output for the slots y[E, C, h], exchanged over the ranks of ``axis``; empty: one rank."""
    if axis:
        y = ex.exchange(t, y, axis, 0)
    y = _experts(b, t, f"layer{gating.layer}.experts", y, gating.spec)
    return ex.exchange(t, y, axis, 1) if axis else y


def exact_experts(b: LayerBuilder, t: TaskTracer, gating: Gating) -> Tensor:
    """Return the same with a row for every choice: ranks exchange counts, then as many rows as there are."""
    layer, spec, routing, ranks = gating.layer, gating.spec, b.routing, t.mesh.degree(EXPERT_AXIS)
    name = f"layer{layer}"
    assert routing is not None
    found = exact.route_exact(
        t, gating.name, gating.logits, forced=gating.forced_exactly, balance_loss=gating.balance_loss
    )
    counts, layout = found.counts, ex.slots_layout(gating.x, EXPERT_AXIS if ranks > 1 else "")
    y = ex.dispatch(t, f"{name}.dispatch", gating.x, found.routes, layout)
    if ranks == 1:
        y = _experts(b, t, f"{name}.experts", y, spec, ex.Rows(counts, routing.rows(layer)))
        return ex.combine(t, f"{name}.combine", y, found.routes)
    exchange = routing.exchange(layer, eight_bits=spec.dispatch_precision == "fp8")
    parts = exact.packed(t, y, exchange)
    counts = ex.all_to_all(t, counts, EXPERT_AXIS, Kind.ACTIVATION)
    y = exact.to_experts(t, y, exchange, parts)
    y = _of_ranks(b, t, gating, y, ex.Rows(counts, routing.rows(layer)), ranks)
    y = exact.from_experts(t, y, exchange)
    return ex.combine(t, f"{name}.combine", y, found.routes)


def _of_ranks(b: LayerBuilder, t: TaskTracer, gating: Gating, y: Tensor, rows: ex.Rows, ranks: int) -> Tensor:
    """Return the outputs for received rows, in the order in which they come from so many ranks."""
    is_mixed, name = len(rows.of_experts) > 1, f"layer{gating.layer}.experts"
    if is_mixed:
        y = exact.sort_rows(t, y, rows.counts, ranks, by_expert=True)
    y = _experts(b, t, name, y, gating.spec, rows)
    return exact.sort_rows(t, y, rows.counts, ranks, by_expert=False) if is_mixed else y


def relayed_experts(b: LayerBuilder, t: TaskTracer, gating: Gating) -> Tensor:
    """Return the same where a token is sent once to every node with experts of its choice, and handed on there."""
    layer, spec, routing, name = gating.layer, gating.spec, b.routing, f"layer{gating.layer}"
    assert routing is not None
    nodes = routing.num_nodes
    weights, experts, _ = exact.choose(t, gating.name, gating.logits, gating.forced_exactly, gating.balance_loss)
    hops = routing.hops(layer, eight_bits=spec.dispatch_precision == "fp8")
    found = relay.to_nodes(t, name, gating.x, (weights, experts), hops, (nodes, spec.num_experts // nodes))
    rows = ex.Rows(found.counts, routing.rows(layer))
    y = _of_ranks(b, t, gating, found.x, rows, t.mesh.degree(EXPERT_AXIS) // nodes)
    return relay.from_nodes(t, name, y, found, hops, weights.layout)


def _experts(
    b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, spec: ExpertsSpec, rows: ex.Rows | None = None
) -> Tensor:
    """Return every expert's output for its slots of x[E, slots, h]; like Megatron-LM's, experts have no biases.

    ``rows``: x is [1, rows, h], with so many of each expert.
    """
    h, width = b.model.hidden_size, spec.ffn_hidden_size
    activation, inner = b.model.activation, (h, width) if b.model.family == "gpt" else (h, 2, width)
    cut = b.tensor.column_layout(outputs=len(inner), inputs=1)
    first = _weight(t, f"{name}.fc1.weight", (spec.num_experts, *inner), cut)
    y = ex.grouped_linear(t, f"{name}.fc1", x, first, b.products, rows)
    y = f.elementwise(t, f"{name}.{activation}", activation, y)
    cut = b.tensor.row_layout(outputs=2, inputs=1)
    second = _weight(t, f"{name}.fc2.weight", (spec.num_experts, width, h), cut)
    return ex.grouped_linear(t, f"{name}.fc2", y, second, b.products, rows)


def _weight(t: TaskTracer, source: str, shape: tuple[int, ...], cut: Layout) -> Parameter:
    """Return a weight of all experts, shared out over the ranks of ``ep``, each cut by tensor parallelism."""
    layout = sharded(0, (EXPERT_AXIS,)) if t.mesh.degree(EXPERT_AXIS) > 1 else REPLICATED
    return t.program.parameter(source, shape, Layout((*layout.placements, *cut.placements)), "normal")
