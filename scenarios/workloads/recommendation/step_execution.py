"""Training steps of a click model with torch, beside the simulation of the same plans."""

import os
from collections.abc import Sequence
from itertools import islice
from statistics import median_low

from msgspec import Struct
from msgspec.structs import replace

from backends.execution.clicks import ClickCheck, persistent
from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.registry import load_torch_backend
from backends.simulated import SimulatedBackend
from backends.torch.launching.environment import job_member
from scenarios.errors import Origin, ScenarioError
from scenarios.summaries.measured.execution import CheckedNumbers, ExecutionSummary
from scenarios.summaries.steps.algorithm import BACKPROPAGATION
from scenarios.this_computer import physical_memory_bytes
from scenarios.workloads.executing import NATIVE, Device, ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.recommendation.running import refuse_large_tables, refusing_small_cache
from scenarios.workloads.recommendation.scenario import RecommendationScenario
from scenarios.workloads.recommendation.step_time import middle_batch, parts_of
from scenarios.workloads.recommendation.timed import TimedSpec
from scenarios.workloads.steps.executing.execution import (
    ExecutedStep,
    checked_numbers,
    executed_roles,
    executed_work,
    has_stated_memory,
    refuse_too_large,
)
from scenarios.workloads.steps.pricing import cluster_pricing
from sim.embedding.ids import id_source
from sim.embedding.policies import Ints
from sim.embedding.rank_batch import RankBatch
from sim.embedding.run import run_cache
from sim.embedding.step.builder import build_step
from sim.embedding.step.spec import ClickStep
from sim.engine.findings.timeline import timeline
from sim.engine.running.memory import memory_use
from sim.plan.words.program import Plan
from traces.timeline import Timeline

_KNOWN = ("device", "check", "timing", "steps", "timeout")


class _Steps(Struct, frozen=True, kw_only=True):
    """Steps on batches that follow each other. ``parts``: the ranks' parts of each batch; ``ids``: its lookups."""

    step: ClickStep
    parts: Sequence[Sequence[RankBatch]]
    ids: Sequence[Ints]
    plans: Sequence[Plan]


def execute_steps(scenario: RecommendationScenario, timed: TimedSpec, options: ExecutionOptions) -> ExecutedStep | None:
    """Return the executed steps up to the batch that a simulation times; None in a process that does not report.

    The steps run in one session: rows stay where the step before has left them. The answer is that of the step of
    median time among those after the first, beside the simulation of its plan. Memory is compared in all steps. A check
    compares what they have made of layers and rows.
    """
    refuse_options(options, "steps of recommendation models", but=_KNOWN)
    steps = _steps(scenario, timed, options)
    first, last = steps.plans[0], steps.plans[-1]
    if job_member(os.environ, [first]) is None and options.device == "cpu":
        refuse_too_large(first, physical_memory_bytes())
        refuse_large_tables(scenario, _drawn_rows(scenario, first.mesh.size, options))

    def request_of(plan: Plan) -> ExecutionRequest:
        keep = persistent(plan) if options.check and plan is last else frozenset[str]()
        return ExecutionRequest(plan=plan, keep=keep, timing=options.timing)

    library = load_torch_backend()
    backend, executions = library.backend(options.device, silence_s(options)), list[Execution]()
    with backend.session(first.mesh.size, request_of=request_of, on_step=executions.append) as session:
        for plan in steps.plans:
            session.step(plan)
    member = job_member(os.environ, [first])
    if member is not None and member.rank:
        return None
    check = None
    if options.check:
        asked = ClickCheck(
            step=steps.step, tables=scenario.tables, ids=steps.ids, last=executions[-1], parts=steps.parts[-1]
        )
        check = checked_numbers(library.check_clicks(asked))
    shown = _usual(executions)
    return _compared(scenario, timed, executions, (shown, backend.timeline(executions[shown])), check, options.device)


def _steps(scenario: RecommendationScenario, timed: TimedSpec, options: ExecutionOptions) -> _Steps:
    """Return the steps on as many batches as are asked for, up to the one that a simulation times, if there are."""
    total = scenario.num_unmeasured + scenario.num_batches
    if options.steps > total:
        rule = f"{options.steps:,} steps are more than the {total:,} batches of the scenario"
        raise ScenarioError(Origin(option=f"--steps {options.steps}"), "", rule, "write fewer steps")
    source = id_source(scenario.tables, scenario.seed, scenario.recorded)
    with refusing_small_cache(scenario):
        trace = total, scenario.batch_size, scenario.seed
        counted = run_cache(scenario.tables, scenario.cache, *trace, source=source)
        first = max(middle_batch(scenario, counted) + 1 - options.steps, 0)
        batches = range(first, first + options.steps)
        parts = parts_of(scenario, timed, batches, source)
    ids = islice(source.batches(batches.stop, scenario.batch_size), batches.start, None)
    double = options.check and options.device == "cpu"
    step = timed.step(scenario.name, scenario.tables, scenario.batch_size, scenario.seed)
    step = replace(step, dtype="float64" if double else "float32")
    plans = [build_step(step, part, starts=not place) for place, part in enumerate(parts)]
    return _Steps(step=step, parts=parts, ids=list(ids), plans=plans)


def _drawn_rows(scenario: RecommendationScenario, num_ranks: int, options: ExecutionOptions) -> int:
    """Return the rows, of 32 bits, that are drawn beside the plan's: by each rank, and by a check with gradients."""
    return (2 * num_ranks + 8 * options.check) * scenario.num_rows


def _usual(executions: Sequence[Execution]) -> int:
    """Return the number of the step of median time among those after the first."""
    times_s = [execution.iteration_time_s for execution in executions[1:]]
    return 1 + times_s.index(median_low(times_s))


def _compared(
    scenario: RecommendationScenario,
    timed: TimedSpec,
    executions: Sequence[Execution],
    shown: tuple[int, Timeline],
    check: CheckedNumbers | None,
    device: Device,
) -> ExecutedStep:
    """Return a step beside the simulation of its plan. ``shown``: its number and its timeline, which may be empty."""
    execution, executed = executions[shown[0]], shown[1]
    pricing = cluster_pricing(timed.cluster, {}, scenario.seed, timed.software)
    run = SimulatedBackend(pricing).simulate(execution.plan)
    simulated = timeline(run, "op")
    work = executed_work(simulated, executed) if len(executed) else None
    same_memory = all(map(has_stated_memory, executions))
    peaks = {program.role_name: memory_use(program).peak_bytes for program in execution.plan.programs}
    summary = ExecutionSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        algorithm=BACKPROPAGATION,
        world_size=len(execution.ranks),
        iteration_time_s=execution.iteration_time_s,
        iteration_times_s=tuple(step.iteration_time_s for step in executions[1:]),
        simulated_iteration_time_s=run.iteration_time_s,
        simulated_iteration_time_median_s=None,
        simulated_iteration_time_interval_s=None,
        roles=executed_roles(execution, peaks),
        same_peak_memory=same_memory,
        collectives=NATIVE,
        num_cores=len(os.sched_getaffinity(0)) if device == "cpu" else None,
        profile_basis=pricing.profile.basis,
        work=work,
        check=check,
        passed=same_memory and (work is None or work.same_work) and (check is None or check.check_passed),
    )
    return ExecutedStep(name=scenario.name, summary=summary, simulated=simulated, timeline=executed)
