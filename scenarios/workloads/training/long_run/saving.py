"""How long a checkpoint takes, and what it takes from the steps beside it, from simulations of both."""

from math import ceil

from backends.simulated import SimulatedBackend
from costmodels.hardware import HostSpec
from costmodels.units import format_bytes
from scenarios.summaries.steps.study import SavingSummary
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.program import Plan
from sim.reliability.errors import ReliabilityError
from sim.training.checkpoint import Saved, beside_writing, saved_state, snapshot, writing
from sim.training.spec.job import DenseTraining

_KEY = "reliability.checkpoint.over_steps"


def simulated_saving(
    job: DenseTraining, plan: Plan, pricing: ClusterPricing, step_s: float, over_steps: int | None
) -> SavingSummary:
    """Return what the simulation says of a checkpoint of the job whose step takes ``step_s`` seconds.

    ``over_steps``: steps beside which it is written; None: as few as the drives need. Raises ReliabilityError where
    the hosts or their drives have no room for it.
    """
    saved = saved_state(job, plan)
    per_node = min(pricing.cluster.devices_per_node, plan.mesh.size)
    _refuse_too_large(saved, per_node, pricing.cluster.node.host)
    backend = SimulatedBackend(pricing)
    alone_s = backend.simulate(writing(plan, saved)).iteration_time_s
    num_steps = over_steps or max(1, ceil(alone_s / step_s))
    return SavingSummary(
        over_steps=num_steps,
        snapshot_s=backend.simulate(snapshot(plan, saved)).iteration_time_s,
        step_s=max(step_s, backend.simulate(beside_writing(plan, saved, num_steps)).iteration_time_s),
        writing_alone_s=alone_s,
        node_bytes=saved.rank_bytes * per_node,
        node_host_bytes=saved.snapshot_bytes * per_node,
    )


def stall_s(saving: SavingSummary, step_s: float) -> float:
    """Return the seconds that a checkpoint costs: training stands still for the snapshot, then goes on more slowly."""
    return saving.snapshot_s + saving.over_steps * (saving.step_s - step_s)


def _refuse_too_large(saved: Saved, per_node: int, host: HostSpec) -> None:
    """Raise ReliabilityError where a snapshot is larger than the host's memory, or two checkpoints than its drives."""
    storage = host.storage
    assert storage is not None, "drives are stated where checkpoints go to them"
    rooms = (
        (saved.snapshot_bytes, host.memory_bytes, "a node's snapshot takes", "its host has"),
        (2 * saved.rank_bytes, storage.capacity_bytes, "two checkpoints of a node take", "its drives have"),
    )
    for rank_bytes, capacity_bytes, takes, has in rooms:
        if rank_bytes * per_node > capacity_bytes:
            rule = f"{takes} {format_bytes(rank_bytes * per_node)}, and {has} {format_bytes(capacity_bytes)}"
            raise ReliabilityError(_KEY, rule, "use more nodes, or state save")
