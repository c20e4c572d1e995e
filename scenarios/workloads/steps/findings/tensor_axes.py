"""What the traffic along each axis of a tensor-parallel mesh costs, and how much of it stays inside nodes."""

from collections.abc import Sequence

from scenarios.summaries.steps.mean_rank import mean_busy_s, mean_exposed_s
from scenarios.summaries.steps.step import RoleSummary, TensorAxis
from sim.engine.findings.sent import sent_bytes
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import all_groups
from sim.engine.running.run import SimulatedRun
from sim.plan.words.stream import Purpose, stream_of


def tensor_axes_of(run: SimulatedRun, pricing: Pricing, roles: Sequence[RoleSummary]) -> tuple[TensorAxis, ...] | None:
    """Return an entry per axis, outermost first; None where tensor parallelism has one axis, or times are stated."""
    mesh = run.plan.mesh
    axes = [(name, degree) for name, degree in mesh.axes if degree > 1 and stream_of(name).purpose is Purpose.TENSOR]
    if len(axes) < 2 or not isinstance(pricing, ClusterPricing):
        return None
    sent = sent_bytes(run, pricing)
    busy, exposed = mean_busy_s(roles), mean_exposed_s(roles)
    return tuple(
        TensorAxis(
            axis=name,
            degree=degree,
            ranks_per_node=max(pricing.network.ranks_per_node(tuple(all_groups(mesh, (name,))[0].tolist()))),
            sent_bytes_per_rank=sent.get(name, 0.0) / run.plan.num_steps,
            busy_s=busy.get(name, 0.0),
            exposed_s=exposed.get(name, 0.0),
        )
        for name, degree in axes
    )
