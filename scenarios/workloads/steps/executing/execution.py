"""Execution of a scenario's plan with torch, compared with its simulation."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest, ExplicitCollectives
from backends.execution.result import CheckReport, Execution
from backends.registry import load_torch_backend
from backends.torch.launching.environment import job_member
from costmodels.units import format_bytes
from scenarios.calibration.calibration import Calibration
from scenarios.calibration.page import write_calibration_page
from scenarios.calibration.request import write_profile
from scenarios.errors import Origin, ScenarioError
from scenarios.report.blocks import Block
from scenarios.report.pages.side_by_side import card_notes_of, execution_blocks
from scenarios.results.files import write_execution
from scenarios.results.folder import writing_to
from scenarios.summaries.measured.execution import CheckedNumbers, ExecutedRole, ExecutedWork, ExecutionSummary
from scenarios.summaries.steps.step import StepSummary
from scenarios.this_computer import physical_memory_bytes
from scenarios.workloads.executing import NATIVE, Device, Executed, ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.steps.executing.calibrating import PROFILE, calibrated_execution
from scenarios.workloads.steps.executing.collectives import chosen_algorithms
from scenarios.workloads.steps.executing.routing import check_recordable, chosen_experts, routings_of
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.memory import memory_use
from sim.moe.recorded import RecordedRouting
from sim.moe.routing_file import write_routing
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan
from traces.comparison.compare import compare
from traces.timeline import Timeline

PROCESS_BYTES = 128 * 2**20
"""The least memory of one process with torch loaded, beside the plan's buffers."""
_KNOWN = ("device", "check", "timing", "collectives", "steps", "timeout", "calibrate", "record_routing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedStep(Executed):
    """A run of a plan, and the simulation of the same plan. ``calibration``: of this machine, beside the run."""

    name: str
    summary: ExecutionSummary
    simulated: Timeline
    timeline: Timeline
    calibration: Calibration | None = None

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        return execution_blocks(self.summary)

    def write(self, out: Path) -> None:
        """Write summary.json, timeline.json.gz, timeline.parquet and report.html (both timelines) into a folder.

        Of a calibration, its profile and the profile's page too.
        """
        with writing_to(out):
            notes = card_notes_of(self.summary)
            write_execution(self.as_json(), self.simulated, self.timeline, out, title=self.name, notes=notes)
            if self.calibration is not None:
                command = "simulate execute --calibrate"
                write_profile(self.calibration.entry, out / f"{PROFILE}.yaml", command)
                write_calibration_page(self.calibration, out / f"{PROFILE}.html", command)


def run(scenario: StepScenario, options: ExecutionOptions) -> ExecutedStep | None:
    """Return the results of some executed steps; None in a process that is not rank 0 of a running job.

    Memory is that of the last step, times are those of the median among the steps that count. The check compares the
    parameters after all steps, and after the calls that the last step defers. Every step begins at the same time on
    all ranks, and so does the simulated one.
    Raises ScenarioError if the scenario cannot be executed, here or at all, ExecutionError if a rank fails.
    """
    refuse_options(options, "single steps", but=_KNOWN)
    device, timeout_s = options.device, silence_s(options)
    scenario = _as_executed(scenario.decided(), device, check=options.check)
    if options.record_routing is not None:
        check_recordable(scenario)
    plan = plan_of(scenario)
    if job_member(os.environ, [plan]) is None and device == "cpu":
        refuse_too_large(plan, physical_memory_bytes())
    algorithms = chosen_algorithms(options.collectives, plan, scenario.algorithms)
    backend, request = load_torch_backend().backend(device, timeout_s), _request(scenario, plan, options, algorithms)
    execution: Execution | None
    if options.calibrate is None:
        execution, calibration = backend.execute(request), None
    else:
        scenario, execution, calibration = calibrated_execution(scenario, request, device, options.calibrate)
    if execution is None:
        return None
    if options.record_routing is not None:
        _record(options.record_routing, scenario, execution)
    found = compared(scenario, execution, backend.timeline(execution), device, algorithms)
    return dataclasses.replace(found, calibration=calibration)


def compared(
    scenario: StepScenario,
    execution: Execution,
    timeline: Timeline,
    device: Device,
    algorithms: Mapping[str, str] | None = None,
) -> ExecutedStep:
    """Return an executed step of a decided scenario beside the simulation of its plan.

    ``timeline``: of the execution; empty where ops were not timed. ``algorithms``: of collectives that ran message by
    message.
    """
    plan = execution.plan
    priced = scenario if algorithms is None else replace(scenario, algorithms=algorithms)
    simulated = simulate(priced, detail="op", fold=True, plan=replace(plan, barrier=True))
    work = executed_work(simulated.timeline, timeline) if len(timeline) else None
    checked = None if execution.check is None else checked_numbers(execution.check)
    num_cores = len(os.sched_getaffinity(0)) if device == "cpu" else None
    summary = _summary(scenario, execution, simulated.summary, plan.num_steps, work, checked, num_cores)
    if algorithms is not None:
        summary = replace(summary, collectives=dict(algorithms))
    return ExecutedStep(name=scenario.name, summary=summary, simulated=simulated.timeline, timeline=timeline)


def _request(
    scenario: StepScenario, plan: Plan, options: ExecutionOptions, algorithms: Mapping[str, str] | None
) -> ExecutionRequest:
    """Return what the ranks are asked for. ``algorithms``: of collectives that run message by message."""
    return ExecutionRequest(
        plan=plan,
        check_against=scenario.dense_job if options.check else None,
        keep=frozenset() if options.record_routing is None else chosen_experts(plan),
        iterations=options.steps,
        timing=options.timing,
        explicit=None if algorithms is None else ExplicitCollectives(algorithms, _devices_per_island(scenario)),
    )


def _record(file: Path, scenario: StepScenario, execution: Execution) -> None:
    """Write the routing of the last step; each of its micro-batches is a step of the file."""
    job = scenario.dense_job
    assert job is not None
    experts = job.model.experts
    assert experts is not None
    found = routings_of(execution, experts, job.model.num_layers)
    write_routing(file, RecordedRouting.of(str(file), found, experts.first_dense_layers))


def refuse_too_large(plan: Plan, memory_bytes: float) -> None:
    """Raise ScenarioError where a plan's ranks, one process each, need more memory than the computer has."""
    peaks = sum(
        memory_use(program, tier).peak_bytes * plan.num_ranks_of(program) for program in plan.programs for tier in Tier
    )
    needed_bytes = peaks + plan.mesh.size * PROCESS_BYTES
    if needed_bytes > memory_bytes:
        needs = f"{plan.mesh.size:,} ranks on this computer need at least {format_bytes(needed_bytes)} of memory"
        rule = f"{needs}, and it has {format_bytes(memory_bytes)}"
        remedy = "make the model, the batch or the degrees smaller with --set, or join several machines with torchrun"
        raise ScenarioError(Origin(option="execute"), "", rule, remedy)


def _as_executed(scenario: StepScenario, device: Device, *, check: bool) -> StepScenario:
    """Return the scenario with the numbers that it will be executed in. Raises ScenarioError for a vain check."""
    if not check:
        return scenario
    computing = scenario.in_double_precision()  # refuses where nothing is computed
    return computing if device == "cpu" else scenario


def _devices_per_island(scenario: StepScenario) -> int | None:
    return None if scenario.cluster is None else scenario.cluster.devices_per_island


def _summary(
    scenario: StepScenario,
    execution: Execution,
    simulated: StepSummary,
    num_steps: int,
    work: ExecutedWork | None,
    check: CheckedNumbers | None,
    num_cores: int | None,
) -> ExecutionSummary:
    """Return what was measured; of a plan that holds several steps their mean time, filling and draining included.

    The interval is of a steady step, so there is none of such a mean.
    """
    peaks = {role.role: (role.peak_memory_bytes, role.peak_host_memory_bytes) for role in simulated.roles}
    same_peak_memory = all((r.memory.peak_bytes, r.host_peak_bytes) == peaks[r.role] for r in execution.ranks)
    return ExecutionSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        algorithm=scenario.algorithm,
        world_size=len(execution.ranks),
        iteration_time_s=execution.iteration_time_s / num_steps,
        iteration_times_s=tuple(time_s / num_steps for time_s in execution.step_times_s),
        simulated_iteration_time_s=simulated.makespan_s / num_steps,
        simulated_iteration_time_median_s=simulated.iteration_time_median_s if num_steps == 1 else None,
        simulated_iteration_time_interval_s=simulated.iteration_time_interval_s if num_steps == 1 else None,
        roles=executed_roles(execution, {role: peak_bytes for role, (peak_bytes, _) in peaks.items()}),
        same_peak_memory=same_peak_memory,
        collectives=NATIVE,
        num_cores=num_cores,
        profile_basis=simulated.resolved.profile_basis if simulated.resolved else None,
        work=work,
        check=check,
        passed=same_peak_memory and (work is None or work.same_work) and (check is None or check.check_passed),
    )


def executed_roles(execution: Execution, simulated_peak_bytes: Mapping[str, int]) -> tuple[ExecutedRole, ...]:
    """Return a row per role, with the memory of its first rank, in the order of the ranks."""
    num_ranks = Counter(result.role for result in execution.ranks)
    first = {result.role: result for result in reversed(execution.ranks)}
    return tuple(
        ExecutedRole(
            role=role,
            num_ranks=count,
            peak_memory_bytes=first[role].memory.peak_bytes,
            simulated_peak_memory_bytes=simulated_peak_bytes[role],
            memory_by_kind_bytes=dict(first[role].memory.peak_by_kind_bytes),
            peak_host_memory_bytes=first[role].host_peak_bytes,
        )
        for role, count in num_ranks.items()
    )


def executed_work(simulated: Timeline, executed: Timeline) -> ExecutedWork:
    """Return whether both timelines hold the same ops, in the same order per stream, with the same bytes."""
    comparison = compare(simulated, executed)
    return ExecutedWork(
        ops=len(comparison.sides.second),
        same_work=comparison.same_work,
        mismatches={what: count for what, count in comparison.mismatches.items() if count},
    )


def has_stated_memory(execution: Execution) -> bool:
    """Return whether every rank's peaks of memory are those that its program states."""
    plan = execution.plan
    return all(
        [memory_use(plan.program_of(rank.rank), tier).peak_bytes for tier in (Tier.DEVICE, Tier.HOST)]
        == [rank.memory.peak_bytes, rank.host_peak_bytes]
        for rank in execution.ranks
    )


def checked_numbers(report: CheckReport) -> CheckedNumbers:
    """Return the worst tensor of a check, and how far off it is."""
    tensor, error = report.worst
    return CheckedNumbers(
        check_passed=report.passed,
        checked_tensors=len(report.errors),
        worst_tensor=tensor,
        max_relative_error=error if math.isfinite(error) else None,
        tolerance=report.tolerance,
    )
