"""What a sweep and a summary both say of a simulated step: rates, where time goes, and whether memory suffices."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from costmodels.hardware import DeviceSpec
from scenarios.summaries.steps.step import AllocatorUse, HostMemory
from scenarios.workloads.steps.findings.means import mean_over_ranks
from scenarios.workloads.steps.findings.rates import Rates
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.breakdown import BUBBLE, EXPERT_WAIT, Breakdown, breakdowns
from sim.engine.running.run import SimulatedRun
from sim.memory import replay
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan


class StepResults(Struct, frozen=True, kw_only=True):
    """``parts``: where the time of each simulated rank goes. ``capacities_bytes``: of their devices; None: no devices.

    ``capacity_bytes``: of the device with the least. ``reserve_bytes``: of a device, which tensors cannot take.
    ``fits_memory``: None without devices.
    """

    rates: Rates
    parts: Mapping[int, Breakdown]
    bubble_fraction: float
    exposed_fraction: float
    capacities_bytes: Mapping[int, int | None]
    capacity_bytes: int | None
    reserve_bytes: int | None
    allocator: AllocatorUse | None
    host: HostMemory | None
    storage: HostMemory | None
    fits_memory: bool | None


def results_of(scenario: StepScenario, run: SimulatedRun) -> StepResults:
    """Return the results of a step's run."""
    parts = breakdowns(run)
    idle, time_s = (BUBBLE, EXPERT_WAIT), run.iteration_time_s
    exposed = {r: sum(v for cause, v in p.exposed_s.items() if cause not in idle) for r, p in parts.items()}
    host, storage = (
        on_node(scenario, max(run.memory_of(rank, tier).peak_bytes for rank in run.programs), run.plan, tier)
        for tier in (Tier.HOST, Tier.NVME)
    )
    reserve_bytes = max((scenario.software.reserve_bytes(device) for device, _ in scenario.devices), default=None)
    allocator = _allocator_use(scenario, run)
    capacities = {rank: _capacity_bytes(scenario.devices, rank) for rank in run.programs}
    fits = _fits(run, capacities, 0 if allocator is None else allocator.reserved_bytes, reserve_bytes or 0)
    return StepResults(
        rates=scenario.rates(run),
        parts=parts,
        bubble_fraction=mean_over_ranks(run, {r: p.exposed_s[BUBBLE] for r, p in parts.items()}) / time_s,
        exposed_fraction=mean_over_ranks(run, exposed) / time_s,
        capacities_bytes=capacities,
        capacity_bytes=min((device.memory_bytes for device, _ in scenario.devices), default=None),
        reserve_bytes=reserve_bytes,
        allocator=allocator,
        host=host,
        storage=storage,
        fits_memory=fits and all(used is None or used.fits for used in (host, storage)),
    )


def _allocator_use(scenario: StepScenario, run: SimulatedRun) -> AllocatorUse | None:
    """Return what the scenario's allocator reserves on the fullest device; None where tensors alone count."""
    name = scenario.allocator
    if name is None:
        return None
    uses = [replay.reserved(run.program_in_full(rank), replay.ALLOCATORS[name]()) for rank in run.programs]
    most = max(uses, key=lambda use: use.reserved_bytes)
    return AllocatorUse(
        name=name,
        live_bytes=most.live_bytes,
        reserved_bytes=most.reserved_bytes,
        fragmentation=most.fragmentation,
    )


def _fits(
    run: SimulatedRun, capacities: Mapping[int, int | None], reserved_bytes: int, reserve_bytes: int
) -> bool | None:
    """Return whether every simulated rank fits on its device beside the reserve; None: no devices.

    ``reserved_bytes``: what an allocator reserves on the fullest device; it must fit on all.
    """
    if None in capacities.values():
        return None
    return all(
        max(run.memory_of(rank).peak_bytes, reserved_bytes) + reserve_bytes <= (capacity or 0)
        for rank, capacity in capacities.items()
    )


def on_node(scenario: StepScenario, most_bytes: int, plan: Plan, tier: Tier) -> HostMemory | None:
    """Return the most that a node's ranks take of its own memory or drives, where they take some, and what it has.

    ``most_bytes``: of the rank of the plan that takes the most.
    """
    if not most_bytes or scenario.cluster is None:
        return None
    per_node, host = scenario.cluster.devices_per_node, scenario.cluster.node_spec.host
    peak, capacity = most_bytes * min(per_node, plan.mesh.size), host.memory_bytes
    if tier is Tier.NVME:
        capacity = 0 if host.storage is None else host.storage.capacity_bytes
    return HostMemory(peak_bytes=peak, capacity_bytes=capacity, fits=peak <= capacity)


def _capacity_bytes(devices: Sequence[tuple[DeviceSpec, int]], rank: int) -> int | None:
    """Return the memory of a rank's device; all ranks of a class have alike ones."""
    ends = accumulate(count for _, count in devices)
    return next((device.memory_bytes for (device, _), end in zip(devices, ends, strict=True) if rank < end), None)
