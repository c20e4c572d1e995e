"""An execution between the measurements of a calibration: whatever disturbs the machine disturbs both."""

import os
from collections.abc import Sequence
from statistics import fmean, median_low
from typing import Final

from msgspec.structs import replace

from backends.execution.measuring.rounds import Run, quiet
from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.torch.launching.environment import job_member
from costmodels.calibration.document import parse_calibrated
from costmodels.hardware import load_node
from scenarios.calibration.calibration import Calibration
from scenarios.calibration.machine import MachineRequest, calibrate_machine
from scenarios.calibration.request import budget_seconds
from scenarios.errors import Origin, ScenarioError
from scenarios.workloads.executing import Device
from scenarios.workloads.steps.scenario import StepScenario

PROFILE: Final = "this-machine"
"""Name of the profile, and of its files beside an execution's results."""
_KINDS: Final = {"cpu": "cpu", "cuda": "gpu"}


def calibrated_execution(
    scenario: StepScenario, request: ExecutionRequest, device: Device, budget: str
) -> tuple[StepScenario, Execution, Calibration]:
    """Return the scenario with a profile of this machine, the usual one of several executions, and the calibration.

    The processes measure this machine for ``budget``, and run the request now and then between the measurements. Of
    the executions those count in which the machine did little else; the one of median time is returned, with the times
    of all. Nothing is fitted to them. Raises ScenarioError where the scenario's cluster is not this machine.
    """
    option = Origin(option=f"--calibrate {budget}")
    budget_s = budget_seconds(budget, "--calibrate")
    if scenario.cluster is None:
        rule = "the times of this scenario are stated, and no profile predicts them"
        raise ScenarioError(option, "", rule, "leave out --calibrate")
    node = load_node(scenario.cluster.node)
    if node.device.kind != _KINDS[device]:
        rule = f"this machine is measured as {device}, and {node.name} has devices of kind {node.device.kind}"
        raise ScenarioError(
            option, "cluster.node", rule, "name this machine's node, as in --set cluster.node=local-cpu"
        )
    if job_member(os.environ, [request.plan]) is not None:
        raise ScenarioError(option, "", "a running job is not measured, only processes of this machine", "leave it out")
    job = scenario.dense_job
    machine = MachineRequest(
        device=device, budget_s=budget_s, processes=request.plan.mesh.size, seed=scenario.seed, beside=request,
        precisions=() if job is None else (job.training.precision,),
    )  # fmt: skip
    calibration = calibrate_machine(node, machine)
    cluster = replace(scenario.cluster, calibrated=parse_calibrated(PROFILE, calibration.entry))
    return replace(scenario, cluster=cluster), usual_execution(calibration.executions), calibration


def usual_execution(executions: Sequence[Execution]) -> Execution:
    """Return the quiet execution of median time, with the step times of all quiet ones.

    Where one fails its check, the first of these is returned.
    """
    for execution in executions:
        if execution.check is not None and not execution.check.passed:
            return execution
    runs = [_run(execution) for execution in executions]
    counted = quiet(runs)
    found = [execution for execution, run in zip(executions, runs, strict=True) if run in counted]
    times_s = tuple(time_s for execution in found for time_s in execution.step_times_s)
    middle_s = median_low(execution.iteration_time_s for execution in found)
    usual = next(execution for execution in found if execution.iteration_time_s == middle_s)
    return replace(usual, ranks=tuple(replace(result, step_times_s=times_s) for result in usual.ranks))


def _run(execution: Execution) -> Run:
    """Return an execution as a run of a benchmark, by which its quietness is judged."""
    return Run("execution", {}, fmean(result.cpu_s / result.step_s for result in execution.ranks))
