"""Advice: the most helpful change of a scenario. Changes against the greatest losses are simulated first.

Advice names only overrides that make a valid scenario, and if possible only those that fit in memory. Steps of more
than ``MOST_EVENTS`` events take seconds each. For these the first change against the greatest loss is named untried.
"""

from collections.abc import Iterator
from typing import Final

from scenarios.errors import ScenarioError
from scenarios.report.words import Advice
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.steps.findings.losses import Change, Loss
from scenarios.workloads.steps.running import plan_of, run_step
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import with_changes
from sim.engine.running.memory import memory_use

MOST_EVENTS: Final = 20_000
WORTH_DOING: Final = 0.01
"""A change that adds a smaller fraction to the throughput is not advised."""


def advise(scenario: StepScenario, summary: StepSummary) -> Advice | None:
    """Return the change with the largest gain of throughput, among the first useful one of each loss that fits.

    For a plan that does not fit, the change with which it fits and is fastest, or else the first valid one. None where
    nothing is worth changing. ``summary``: of the scenario's step.
    """
    tries = summary.engine.events <= MOST_EVENTS
    work_per_s = scenario.num_samples / summary.iteration_time_s if tries else None
    best: Advice | None = None
    known: set[Change] = set()
    for loss in scenario.losses(summary):
        if loss.is_memory:
            return _against_misfit(loss, scenario, work_per_s)
        if best is not None and (best.gain is None or best.gain >= loss.most_gain):
            break
        fitting = _fitting(loss, scenario, work_per_s, known)
        worth = (it for it in fitting if it.gain is None or it.gain >= WORTH_DOING)
        best = max((it for it in (best, next(worth, None)) if it is not None), key=_gain, default=None)
    return best


def _against_misfit(loss: Loss, scenario: StepScenario, work_per_s: float | None) -> Advice | None:
    """Return the fastest change with which the plan fits, untried the first; the first valid one where none does."""
    fitting = _fitting(loss, scenario, work_per_s, set())
    found = next(fitting, None) if work_per_s is None else max(fitting, key=_gain, default=None)
    if found is not None:
        return found
    valid = (change for change in loss.changes if _changed(scenario, change) is not None)
    return next((Advice(loss.name, loss.fraction, change, fits_memory=False) for change in valid), None)


def _fitting(loss: Loss, scenario: StepScenario, work_per_s: float | None, known: set[Change]) -> Iterator[Advice]:
    """Yield the changes against a loss that are valid and fit in memory, simulated where there is a rate to beat.

    Those that are ``known`` are passed over; each that is looked at is, from then on.
    """
    for change in loss.changes:
        if change in known:
            continue
        known.add(change)
        changed = _changed(scenario, change)
        if changed is not None and _fits_memory(changed):
            gain = None if work_per_s is None else _work_per_s(changed) / work_per_s - 1.0
            yield Advice(loss.name, loss.fraction, change, fits_memory=True, gain=gain)


def _gain(advice: Advice) -> float:
    return 0.0 if advice.gain is None else advice.gain


def _work_per_s(scenario: StepScenario) -> float:
    """Return the samples per second of a scenario's step, 0 where it cannot be simulated."""
    try:
        return scenario.num_samples / run_step(scenario).iteration_time_s
    except ScenarioError:  # an algorithm that cannot serve the groups that there are now
        return 0.0


def _changed(scenario: StepScenario, change: Change) -> StepScenario | None:
    """Return the scenario with the change, None where that is not valid."""
    try:
        return with_changes(scenario, change)
    except ScenarioError:
        return None


def _fits_memory(scenario: StepScenario) -> bool:
    """Return whether every role's peak fits; a textbook workload always does."""
    device = scenario.device
    if device is None:
        return True
    try:
        programs = plan_of(scenario.with_few_microbatches()).programs
    except ScenarioError:  # no choice of what to shard fits
        return False
    return all(memory_use(program).peak_bytes <= device.memory_bytes for program in programs)
