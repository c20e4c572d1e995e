"""The loop closed on this machine: calibrate it, run plans on it, and compare with their simulation."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from msgspec.structs import replace

from backends.execution.measuring.steps import StepBenchmark
from costmodels.calibration.document import CalibratedProfile, parse_calibrated
from costmodels.hardware import load_node
from scenarios.calibration.calibration import Calibration
from scenarios.calibration.machine import MachineRequest, calibrate_machine
from scenarios.calibration.page import write_calibration_page
from scenarios.calibration.request import write_profile
from scenarios.errors import Origin, ScenarioError
from scenarios.here.plan_set import PlanSet, with_profile
from scenarios.here.ranking import pick_of, ranking
from scenarios.results.files import all_or_none, write_summary
from scenarios.results.folder import writing_to
from scenarios.summaries.as_json import as_json
from scenarios.summaries.measured.calibration import CalibrationSummary, MachineOrigin
from scenarios.summaries.measured.here import HereSummary, PlanRow
from scenarios.workloads.steps.executing.execution import refuse_too_large
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.training.spec.job import Precision

SESSIONS: Final = 2
"""How often processes are started, each time for a part of the budget: the fit so far decides what is measured next."""
COLUMNS: Final = PlanRow.__struct_fields__
"""The columns of plans.csv."""


def run(
    plans: PlanSet, *, budget_s: float, seed: int, measuring: Callable[[float], Any], memory_bytes: float
) -> tuple[HereSummary, Calibration]:
    """Return what was measured and predicted of every plan, and the calibration that it was predicted with.

    One budget is for both. Every round runs each plan and each benchmark once, in an order of its own, so whatever
    disturbs the machine disturbs both; medians over the runs in which it was quiet count. A figure is of a second
    step after one that warms up. All that is fitted comes from the benchmarks, nothing from the plans.
    Raises ScenarioError where the plans do not fit this machine or the budget, ExecutionError where a process fails.
    """
    scenarios = {name: scenario.decided() for name, scenario in plans.scenarios.items()}
    steps = tuple(StepBenchmark(name, plan_of(scenario)) for name, scenario in scenarios.items())
    for step in steps:
        refuse_too_large(step.plan, memory_bytes)
    node = load_node(plans.node)
    request = MachineRequest(
        device="cpu" if node.device.kind == "cpu" else "cuda", budget_s=budget_s, processes=plans.num_ranks, seed=seed,
        sessions=SESSIONS, precisions=_precisions(scenarios), steps=steps,
    )  # fmt: skip
    calibration = calibrate_machine(node, request, measuring=measuring)
    missing = [step.key for step in steps if not calibration.step_times_s[step.key]]
    if missing:
        rule = f"the budget was over before {missing[0]!r} and {len(missing) - 1} more plans had run"
        raise ScenarioError(Origin(option="--budget"), "", rule, "give it a longer one")
    profile = parse_calibrated("here", calibration.entry)
    rows = tuple(_row(scenarios[step.key], step, calibration.step_times_s[step.key], profile) for step in steps)
    return _summary(plans, rows, calibration.summary), calibration


def _precisions(scenarios: Mapping[str, StepScenario]) -> tuple[Precision, ...]:
    jobs = (scenario.dense_job for scenario in scenarios.values())
    return tuple(dict.fromkeys(job.training.precision for job in jobs if job is not None))


def _row(scenario: StepScenario, step: StepBenchmark, times_s: Sequence[float], profile: CalibratedProfile) -> PlanRow:
    """Return one plan's row; every executed step begins at the same time on all ranks, so does the simulated one.

    Both figures are medians: of the runs that were measured, and of as many drawn as the interval is of. Processes that
    wait for each other take longer than one without the jitter that the calibration found.
    """
    found = simulate(with_profile(scenario, profile), plan=replace(step.plan, barrier=True)).summary
    measured_s, predicted_s, bounds_s = median(times_s), found.iteration_time_median_s, found.iteration_time_interval_s
    assert predicted_s is not None  # a cluster has an interval
    assert bounds_s is not None
    low_s, high_s = bounds_s
    return PlanRow(
        plan=step.key,
        measured_s=measured_s,
        predicted_s=predicted_s,
        error=predicted_s / measured_s - 1.0,
        low_s=low_s,
        high_s=high_s,
        inside=low_s <= measured_s <= high_s,
        runs=len(times_s),
        spread=(max(times_s) - min(times_s)) / measured_s,
    )


def _summary(plans: PlanSet, rows: tuple[PlanRow, ...], calibration: CalibrationSummary) -> HereSummary:
    errors = [abs(row.error) for row in rows]
    order = ranking([row.measured_s for row in rows], [row.predicted_s for row in rows])
    most, origin = plans.thresholds, calibration.origin
    assert isinstance(origin, MachineOrigin)
    return HereSummary(
        plans=rows,
        mean_absolute_error=fmean(errors),
        worst=max(errors),
        coverage=fmean(row.inside for row in rows),
        ranking=order,
        pick=pick_of(rows),
        thresholds=most,
        passed=fmean(errors) <= most.mean and max(errors) <= most.worst and order.fraction >= most.ranking,
        machine=origin.machine,
        processes=origin.processes,
        runs=origin.runs,
        measured=origin.measured,
        date=calibration.date,
        versions=calibration.versions,
    )


def write_outputs(summary: HereSummary, calibration: Calibration, out: Path, command: str) -> None:
    """Write summary.json, plans.csv, profile.yaml and the calibration's page, profile.html, into a folder."""
    with writing_to(out), all_or_none(out) as staging:
        write_summary(as_json(summary), staging)
        with (staging / "plans.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(as_json(summary.plans))
        write_profile(calibration.entry, staging / "profile.yaml", command)
        write_calibration_page(calibration, staging / "profile.html", command)
