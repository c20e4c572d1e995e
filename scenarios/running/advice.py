"""What would help a scenario most: changes against its greatest losses, simulated before they are advised.

Only overrides that make a valid scenario are named, and only such as fit in memory, where any do. Steps of more than
``MOST_EVENTS`` events take seconds each, so there the first change against the greatest loss is named untried.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from scenarios.errors import ScenarioError
from scenarios.reading.loader import Scenario
from scenarios.report.words import Advice
from scenarios.running.remedies import Change, Loss, losses_of
from scenarios.running.runner import device_of, plan_of, run_step
from sim.engine.running.memory import memory_use
from sim.training.spec.job import DenseTraining

MOST_EVENTS: Final = 20_000
WORTH_DOING: Final = 0.01
"""A change that adds a smaller fraction to the throughput is not advised."""

_STEADY: Final = ("1f1b", "interleaved_1f1b")
"""Schedules whose peak memory does not grow with the number of micro-batches."""


def advise(scenario: Scenario, summary: Mapping[str, Any]) -> Advice | None:
    """Return the change that adds most to the throughput: of each loss the first that is worth it and fits in memory.

    For a plan that does not fit, the change with which it fits and is fastest, or else the first valid one. None where
    nothing is worth changing. ``summary``: of the scenario's step.
    """
    tries = summary["engine"]["events"] <= MOST_EVENTS
    work_per_s = _work(scenario) / summary["iteration_time_s"] if tries else None
    best: Advice | None = None
    known: set[Change] = set()
    for loss in losses_of(scenario.job, summary):
        if loss.is_memory:
            return _against_misfit(loss, scenario, work_per_s)
        if best is not None and (best.gain is None or best.gain >= loss.most_gain):
            break
        fitting = _fitting(loss, scenario, work_per_s, known)
        worth = (it for it in fitting if it.gain is None or it.gain >= WORTH_DOING)
        best = max((it for it in (best, next(worth, None)) if it is not None), key=_gain, default=None)
    return best


def _against_misfit(loss: Loss, scenario: Scenario, work_per_s: float | None) -> Advice | None:
    """Return the fastest change with which the plan fits, untried the first; the first valid one where none does."""
    fitting = _fitting(loss, scenario, work_per_s, set())
    found = next(fitting, None) if work_per_s is None else max(fitting, key=_gain, default=None)
    if found is not None:
        return found
    valid = (change for change in loss.changes if _changed(scenario, change) is not None)
    return next((Advice(loss.name, loss.fraction, change, fits_memory=False) for change in valid), None)


def _fitting(loss: Loss, scenario: Scenario, work_per_s: float | None, known: set[Change]) -> Iterator[Advice]:
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


def _work_per_s(scenario: Scenario) -> float:
    """Return the samples per second of a scenario's step, 0 where it cannot be simulated."""
    try:
        return _work(scenario) / run_step(scenario).iteration_time_s
    except ScenarioError:  # an algorithm that cannot serve the groups that there are now
        return 0.0


def _work(scenario: Scenario) -> int:
    """Return the samples of a step, of a textbook workload its micro-batches."""
    job = scenario.job
    return job.training.global_batch_size if isinstance(job, DenseTraining) else job.num_microbatches


def _changed(scenario: Scenario, change: Change) -> Scenario | None:
    """Return the scenario with the change, None where that is not valid."""
    try:
        return scenario.changed(change)
    except ScenarioError:
        return None


def _fits_memory(scenario: Scenario) -> bool:
    """Return whether every role's peak fits; a textbook workload always does."""
    device = device_of(scenario)
    if device is None:
        return True
    try:
        programs = plan_of(with_few_microbatches(scenario)).programs
    except ScenarioError:  # no choice of what to shard fits
        return False
    return all(memory_use(program).peak_bytes <= device.memory_bytes for program in programs)


def with_few_microbatches(scenario: Scenario) -> Scenario:
    """Return the scenario with no more micro-batches than its peak memory needs: two per stage of a 1F1B schedule.

    No rank of such a schedule begins more forwards before its first backward (Narayanan et al. 2021, section 2.2).
    """
    job = scenario.job
    if not isinstance(job, DenseTraining) or job.parallel.pipeline.schedule not in _STEADY:
        return scenario
    most = 2 * job.parallel.pipeline.degree * job.training.microbatch_size * job.parallel.data_degree
    training = replace(job.training, global_batch_size=min(job.training.global_batch_size, most))
    return replace(scenario, job=replace(job, training=training))
