"""Experts with replicas: a rank has copies of some experts, and each copy gets a part of its expert's tokens.

A copy is a part of the weights of all experts, held by the ranks that a placement names. So its initial values, its
gradient, its optimizer state and its moves between plans are those of any part of a parameter. Gradients are summed
over the holders of an expert. Nie et al. 2023, FlexMoE.
"""

from collections.abc import Sequence

from costmodels.kernels import TensorSpec
from sim.plan.functions import basic as f
from sim.plan.functions import exact_experts as exact
from sim.plan.functions import experts as ex
from sim.plan.functions.shadows import Shadows
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Part
from sim.plan.words.layout import Layout
from sim.training.layers.gates import Gating
from sim.training.layers.layer import LayerBuilder
from sim.training.layers.rank_routing import RankRouting
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS


def replicated_experts(b: LayerBuilder, t: TaskTracer, gating: Gating) -> Tensor:
    """Return the weighted outputs of the chosen experts for x[s, b, h], computed by the copies of this rank."""
    layer, spec, routing, ranks = gating.layer, gating.spec, b.routing, t.mesh.degree(EXPERT_AXIS)
    assert routing is not None
    name, rows = f"layer{layer}", routing.rows(layer)
    exchange = routing.exchange(layer, eight_bits=spec.dispatch_precision == "fp8")
    found = exact.route_to_copies(
        t, gating.name, gating.logits, forced=gating.forced_exactly, balance_loss=gating.balance_loss,
        shared=exact.SharedCopies(routing.placement(layer), EXPERT_AXIS, exchange.place),
    )  # fmt: skip
    counts = found.counts
    y = ex.dispatch(t, f"{name}.dispatch", gating.x, found.routes, ex.slots_layout(gating.x, EXPERT_AXIS))
    shadows = Shadows(t, EXPERT_AXIS, exchange.place)
    y = exact.to_experts(t, shadows.settled(y), exchange)
    copies = _copies(b, shadows, layer, spec, routing)
    if any(rows):
        parts = exact.part_rows(t, y, counts, ranks, rows)
        busy = [copy for copy, number in zip(copies, rows, strict=True) if number]
        outputs = [_through(b, t, weights, x) for weights, x in zip(busy, parts, strict=True)]
        y = exact.join_rows(t, outputs, counts, ranks, rows)
    y = exact.from_experts(t, shadows.cleared(y), exchange)
    return ex.combine(t, f"{name}.combine", y, found.routes)


def _copies(
    b: LayerBuilder, shadows: Shadows, layer: int, spec: ExpertsSpec, routing: RankRouting
) -> Sequence[tuple[Parameter, Parameter]]:
    """Return the two weights of every expert of a layer that this rank has a copy or a shadow of."""
    h, width = b.model.hidden_size, spec.ffn_hidden_size
    inner = (h, width) if b.model.family == "gpt" else (h, 2, width)
    first = b.tensor.column_layout(outputs=len(inner), inputs=1)
    second = b.tensor.row_layout(outputs=2, inputs=1)

    program, shadowed = shadows.t.program, routing.shadows(layer)

    def weight(number: int, expert: int, shape: tuple[int, ...], cut: Layout) -> Parameter:
        source, holders = f"layer{layer}.experts.fc{number}.weight", routing.holders(layer, expert)
        own = None
        if routing.place in holders:
            own = program.parameter(
                source,
                (spec.num_experts, *shape),
                cut,
                "normal",
                part=Part(0, expert, spec.num_experts),
                holders=holders,
            )
            if expert not in shadowed:
                return own
        local = (1, *cut.local_shape((spec.num_experts, *shape), program.mesh)[1:])
        piece = TensorSpec(local, program.parameter_dtype)
        return shadows.add(f"{source}.part{expert}", piece, cut, own, root=holders[0])

    return [(weight(1, expert, inner, first), weight(2, expert, (width, h), second)) for expert in routing.held(layer)]


def _through(b: LayerBuilder, t: TaskTracer, weights: tuple[Parameter, Parameter], x: Tensor) -> Tensor:
    """Return the output of one copy for its rows x[1, n, h]."""
    first, second = weights
    name, activation = first.source.replace(".weight", ""), b.model.activation
    y = ex.grouped_linear(t, name, x, first, b.products)
    y = f.elementwise(t, f"{name}.{activation}", activation, y)
    return ex.grouped_linear(t, second.source.replace(".weight", ""), y, second, b.products)
