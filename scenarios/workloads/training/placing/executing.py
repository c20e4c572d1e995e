"""The execution of steps in which experts move, beside the same steps in simulation: one policy object drives both."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from backends.execution.result import CheckReport, Execution
from backends.registry import load_torch_backend
from backends.torch.launching.environment import job_member
from scenarios.summaries.measured.execution import ExecutedPlacedStep, ExecutedPlacement, ExecutionSummary
from scenarios.this_computer import physical_memory_bytes
from scenarios.workloads.executing import ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.steps.executing.execution import (
    ExecutedStep,
    checked_numbers,
    compared,
    has_stated_memory,
    refuse_too_large,
)
from scenarios.workloads.steps.executing.routing import check_recordable, chosen_experts, routings_of
from scenarios.workloads.training.placing.decisions import moving_of, policy_of
from scenarios.workloads.training.placing.steps import last_step, moving_turns, simulated_turns
from scenarios.workloads.training.scenario import TrainingScenario
from sim.moe.balancing.replicas import Placed
from sim.moe.recorded import RecordedRouting
from sim.moe.routing_file import write_routing
from sim.plan.session.driver import Turn
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan
from sim.training.adjusting.experts import replica_steps
from sim.training.spec.job import DenseTraining

_KNOWN = ("device", "check", "timing", "timeout", "record_routing")


def execute_moving(scenario: TrainingScenario, options: ExecutionOptions) -> ExecutedStep | None:
    """Return all steps of a scenario whose experts move; None in a process that is not rank 0 of a running job.

    The answer is that of the last step, with a row for each step. A check compares every step with the dense model,
    which is trained on as long.
    """
    refuse_options(options, "steps with experts that move", but=_KNOWN)
    if options.check and options.device == "cpu":
        scenario = scenario.in_double_precision()
    if options.record_routing is not None:
        check_recordable(scenario)
    job, policy = scenario.dense_job, policy_of(scenario.dense_job, scenario.pricing())
    build = replica_steps(job, policy.observed)
    first = build(Placed(policy.first), Residents())
    if job_member(os.environ, [first]) is None and options.device == "cpu":
        refuse_too_large(first, physical_memory_bytes())

    def request_of(plan: Plan) -> ExecutionRequest:
        return ExecutionRequest(
            plan=plan,
            check_against=job if options.check else None,
            keep=frozenset() if options.record_routing is None else chosen_experts(plan),
            timing=options.timing,
        )

    backend = load_torch_backend().backend(options.device, silence_s(options))
    executions: list[Execution] = []
    with backend.session(first.mesh.size, request_of=request_of, on_step=executions.append) as session:
        turns = moving_turns(session, policy, job)
    member = job_member(os.environ, [first])
    if member is not None and member.rank:
        return None
    if options.record_routing is not None:
        _record(options.record_routing, job, executions)
    simulated = simulated_turns(scenario, policy)
    found = compared(
        last_step(scenario, turns[-1].decision),
        executions[-1],
        backend.timeline(executions[-1]),
        options.device,
    )
    summary = _over_steps(found.summary, moving_of(job).policy, executions, turns, simulated)
    return dataclasses.replace(found, summary=summary)


def _over_steps(
    summary: ExecutionSummary,
    policy: str,
    executions: Sequence[Execution],
    executed: Sequence[Turn[Placed]],
    simulated: Sequence[Turn[Placed]],
) -> ExecutionSummary:
    """Return the summary of the last step with what holds in all of them."""
    pairs = list(zip(executed, simulated, strict=True))
    placement = ExecutedPlacement(
        policy=policy,
        same_decisions=all(ours.decision == theirs.decision for ours, theirs in pairs),
        same_work=all(ours.result.work == theirs.result.work for ours, theirs in pairs),
        steps=tuple(_step(ours, theirs) for ours, theirs in pairs),
    )
    checks = [execution.check for execution in executions]
    checked = None if None in checks else checked_numbers(_joined([check for check in checks if check is not None]))
    same_memory = summary.same_peak_memory and all(map(has_stated_memory, executions))
    passed = summary.passed and same_memory and placement.same_decisions and placement.same_work
    return replace(
        summary, placement=placement, check=checked, same_peak_memory=same_memory,
        passed=passed and (checked is None or checked.check_passed),
    )  # fmt: skip


def _step(executed: Turn[Placed], simulated: Turn[Placed]) -> ExecutedPlacedStep:
    placed = executed.decision
    return ExecutedPlacedStep(
        iteration_time_s=executed.result.duration_s,
        simulated_iteration_time_s=simulated.result.duration_s,
        num_copies=placed.replicas.num_copies,
        num_arriving=placed.replicas.num_arriving,
        num_changes=placed.num_changes,
    )


def _joined(checks: Sequence[CheckReport]) -> CheckReport:
    """Return the checks of all steps as one, with names that begin with the step."""
    errors = {f"step {n}, {name}": error for n, check in enumerate(checks) for name, error in check.errors.items()}
    return CheckReport(errors, checks[0].tolerance)


def _record(file: Path, job: DenseTraining, executions: Sequence[Execution]) -> None:
    """Write the routing of every step, whose micro-batches are routed alike."""
    experts, num_layers = job.model.experts, job.model.num_layers
    assert experts is not None
    found = [routings_of(execution, experts, num_layers)[0] for execution in executions]
    write_routing(file, RecordedRouting.of(str(file), found, experts.first_dense_layers))
