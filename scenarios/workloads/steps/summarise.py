"""From a simulated step to its summary."""

from msgspec.structs import asdict, replace

from scenarios.summaries.steps.step import EngineWork, Folded, RoleSummary, StepSummary
from scenarios.workloads.steps.findings.links import communication_of, links_of
from scenarios.workloads.steps.results import StepResults, results_of
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.computing import computing_seconds
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.link_use import LinkUse
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty.errors import ModelErrors
from sim.engine.uncertainty.interval import step_time_interval
from sim.plan.words.buffer import Tier
from sim.sorting import largest_first
from sim.training.data.axes import SAMPLE_AXES


def summarise(
    scenario: StepScenario, run: SimulatedRun, use: LinkUse | None = None, errors: ModelErrors | None = None
) -> StepSummary:
    """Return the summary of a run; rates and memory verdicts only where there are devices.

    ``use``: that of the links. ``errors``: those of the cost models, None where times are stated.
    """
    path = critical_path(run)
    interval = None if errors is None else step_time_interval(path, errors)
    found = results_of(scenario, run)
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
        **asdict(found.rates),
        bubble_fraction=found.bubble_fraction,
        exposed_communication_fraction=found.exposed_fraction,
        critical_path_s=dict(largest_first(path.seconds.items(), lambda part: part[1], lambda part: part[0])),
        fits_memory=found.fits_memory,
        memory_capacity_bytes=found.capacity_bytes,
        memory_reserve_bytes=found.reserve_bytes,
        allocator=found.allocator,
        host_memory=found.host,
        storage=found.storage,
        token_slices=tuple(scenario.pipeline.token_slices) or None,
        roles=_roles(run, found),
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


def _roles(run: SimulatedRun, found: StepResults) -> tuple[RoleSummary, ...]:
    """Return one row per class of ranks that are alike."""
    shares = dict(zip(map(id, run.plan.programs), run.facts.work_shares(run.plan, SAMPLE_AXES), strict=True))
    return tuple(
        RoleSummary(
            role=program.role_name,
            first_rank=rank,
            num_ranks=run.folding.multiplicity[rank],
            peak_memory_bytes=run.memory_of(rank).peak_bytes,
            memory_capacity_bytes=found.capacities_bytes[rank],
            memory_by_kind_bytes=dict(run.memory_of(rank).peak_by_kind_bytes),
            peak_host_memory_bytes=run.memory_of(rank, Tier.HOST).peak_bytes,
            peak_live_microbatches=run.peak_live_chunks(rank),
            busy_s=dict(found.parts[rank].busy_s),
            exposed_s=dict(found.parts[rank].exposed_s),
            computing_s=computing_seconds(run, rank, shares[id(run.plan.program_of(rank))]),
        )
        for rank, program in run.programs.items()
    )
