"""From a simulated step to its summary."""

from collections.abc import Sequence
from itertools import accumulate

from msgspec.structs import asdict, replace

from costmodels.hardware import DeviceSpec
from scenarios.summaries.steps.step import AllocatorUse, EngineWork, Folded, HostMemory, RoleSummary, StepSummary
from scenarios.workloads.steps.findings.links import communication_of, links_of
from scenarios.workloads.steps.findings.means import mean_over_ranks
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.breakdown import BUBBLE, EXPERT_WAIT, Breakdown, breakdown
from sim.engine.findings.computing import computing_seconds
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.link_use import LinkUse
from sim.engine.running.memory import peak_live_chunks
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty.errors import ModelErrors
from sim.engine.uncertainty.interval import step_time_interval
from sim.memory.replay import ALLOCATORS, reserved
from sim.plan.words.buffer import Tier
from sim.training.data.axes import SAMPLE_AXES

Devices = Sequence[tuple[DeviceSpec, int]]
"""Those of the ranks, in rank order, each with how many ranks have it."""


def summarise(
    scenario: StepScenario, run: SimulatedRun, use: LinkUse | None = None, errors: ModelErrors | None = None
) -> StepSummary:
    """Return the summary of a run; rates and memory verdicts only where there are devices.

    ``use``: that of the links. ``errors``: those of the cost models, None where times are stated.
    """
    path = critical_path(run)
    interval = None if errors is None else step_time_interval(path, errors)
    parts = {rank: breakdown(run, rank) for rank in run.programs}
    idle = (BUBBLE, EXPERT_WAIT)
    exposed = {r: sum(v for cause, v in p.exposed_s.items() if cause not in idle) for r, p in parts.items()}
    roles = _roles(run, parts, scenario.devices)
    host, storage = (_on_node(scenario, run, tier) for tier in (Tier.HOST, Tier.NVME))
    reserve_bytes = max((scenario.software.reserve_bytes(device) for device, _ in scenario.devices), default=None)
    allocator = _allocator_use(scenario, run)
    return StepSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        algorithm=scenario.algorithm,
        resolved=scenario.resolved(),
        world_size=run.plan.mesh.size,
        iteration_time_s=run.iteration_time_s,
        iteration_time_interval_s=interval.bounds if interval else None,
        iteration_time_median_s=interval.median_s if interval else None,
        iteration_time_interval_method=interval.method if interval else None,
        makespan_s=run.makespan_s,
        max_rank_span_s=run.max_rank_span_s,
        **asdict(scenario.rates(run)),
        bubble_fraction=mean_over_ranks(run, {r: p.exposed_s[BUBBLE] for r, p in parts.items()}) / run.iteration_time_s,
        exposed_communication_fraction=mean_over_ranks(run, exposed) / run.iteration_time_s,
        critical_path_s=dict(sorted(path.seconds.items(), key=lambda part: (-part[1], part[0]))),
        fits_memory=_fits(roles, allocator, (host, storage), reserve_bytes or 0),
        memory_capacity_bytes=min((device.memory_bytes for device, _ in scenario.devices), default=None),
        memory_reserve_bytes=reserve_bytes,
        allocator=allocator,
        host_memory=host,
        storage=storage,
        token_slices=tuple(scenario.pipeline.token_slices) or None,
        roles=roles,
        links=links_of(use),
        communication=communication_of(use, run.plan.mesh.size),
        fold=Folded(ranks=run.plan.mesh.size, simulated=len(run.programs)),
        engine=_engine_work(run),
    )


def _engine_work(run: SimulatedRun) -> EngineWork:
    work = EngineWork(events=run.num_events, wall_time_s=run.wall_time_s)
    repeated, paced = run.repeated, run.paced
    if paced is not None:
        return replace(work, repeated_periods=paced.times, period_s=paced.longest_s)
    return work if repeated is None else replace(work, repeated_periods=repeated.times, period_s=repeated.length_s)


def _roles(run: SimulatedRun, parts: dict[int, Breakdown], devices: Devices) -> tuple[RoleSummary, ...]:
    """Return one row per class of ranks that are alike."""
    shares = dict(zip(map(id, run.plan.programs), run.facts.work_shares(run.plan, SAMPLE_AXES), strict=True))
    return tuple(
        RoleSummary(
            role=program.role_name,
            first_rank=rank,
            num_ranks=run.folding.multiplicity[rank],
            peak_memory_bytes=run.memory_of(rank).peak_bytes,
            memory_capacity_bytes=_capacity_bytes(devices, rank),
            memory_by_kind_bytes=dict(run.memory_of(rank).peak_by_kind_bytes),
            peak_host_memory_bytes=run.memory_of(rank, Tier.HOST).peak_bytes,
            peak_live_microbatches=peak_live_chunks(run.program_in_full(rank)),
            busy_s=dict(parts[rank].busy_s),
            exposed_s=dict(parts[rank].exposed_s),
            computing_s=computing_seconds(run, rank, shares[id(run.plan.program_of(rank))]),
        )
        for rank, program in run.programs.items()
    )


def _allocator_use(scenario: StepScenario, run: SimulatedRun) -> AllocatorUse | None:
    """Return what the scenario's allocator reserves on the fullest device; None where tensors alone count."""
    name = scenario.allocator
    if name is None:
        return None
    uses = [reserved(run.program_in_full(rank), ALLOCATORS[name]()) for rank in run.programs]
    most = max(uses, key=lambda use: use.reserved_bytes)
    return AllocatorUse(
        name=name,
        live_bytes=most.live_bytes,
        reserved_bytes=most.reserved_bytes,
        fragmentation=most.fragmentation,
    )


def _fits(
    roles: Sequence[RoleSummary],
    allocator: AllocatorUse | None,
    on_node: Sequence[HostMemory | None],
    reserve_bytes: int,
) -> bool | None:
    """Return whether every row fits on its ranks' device beside the reserve, and on their host and its drives.

    With an allocator what it reserves on the fullest device must fit on all. None: no devices.
    """
    reserved_bytes = 0 if allocator is None else allocator.reserved_bytes
    capacities = [role.memory_capacity_bytes for role in roles]
    if None in capacities:
        return None
    fits = all(
        max(role.peak_memory_bytes, reserved_bytes) + reserve_bytes <= (capacity or 0)
        for role, capacity in zip(roles, capacities, strict=True)
    )
    return fits and all(used is None or used.fits for used in on_node)


def _on_node(scenario: StepScenario, run: SimulatedRun, tier: Tier) -> HostMemory | None:
    """Return the most that a node's ranks take of its own memory or drives, where they take some, and what it has."""
    most = max(run.memory_of(rank, tier).peak_bytes for rank in run.programs)
    if not most or scenario.cluster is None:
        return None
    per_node, host = scenario.cluster.devices_per_node, scenario.cluster.node_spec.host
    peak, capacity = most * min(per_node, run.plan.mesh.size), host.memory_bytes
    if tier is Tier.NVME:
        capacity = 0 if host.storage is None else host.storage.capacity_bytes
    return HostMemory(peak_bytes=peak, capacity_bytes=capacity, fits=peak <= capacity)


def _capacity_bytes(devices: Devices, rank: int) -> int | None:
    """Return the memory of a rank's device; all ranks of a class have alike ones."""
    ends = accumulate(count for _, count in devices)
    return next((device.memory_bytes for (device, _), end in zip(devices, ends, strict=True) if rank < end), None)
