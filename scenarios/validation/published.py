"""Predictions of published measurements, and their errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.overrides import with_values
from scenarios.summaries.measured.validation import (
    ErrorThresholds,
    GroupErrors,
    PredictedRow,
    ValidatedTable,
    Validation,
)
from scenarios.validation.collective_row import collective_time_s
from scenarios.workloads.loading import scenario_from_mapping, step_from_mapping
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.running import plan_of
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.steps.summarise import summarise
from sim.engine.findings.critical_path import critical_path
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.collector import collector_paused
from sim.engine.running.memory import kept_bytes, memory_use
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.interval import Interval, step_time_interval
from sim.plan.words.buffer import Kind
from sim.plan.words.program import Program
from traces.published import UNITS, PublishedRow, PublishedTable, load_table, published_tables


class Prediction(NamedTuple):
    """A predicted value in SI units, and its 90 % interval if the models' errors are known."""

    value: float
    interval: Interval | None = None


def run(tables: tuple[Path, ...] = (), data: Path | None = None) -> Validation:
    """Return the measured and predicted rows of every table, and whether they are within its thresholds.

        validation = run()

    ``tables``: sidecars; empty means all that come with meshtwin.
    ``data``: a CSV with other rows for the one table named.

    Values are in the table's unit. Errors are fractions of the measured value, negative if the prediction is less.
    Raises TraceError for a bad table, ScenarioError for a row that is no scenario.
    """
    loaded = [load_table(path, data) for path in tables or published_tables()]
    return Validation(tables=tuple(_validate(table) for table in loaded))


class _Figures(NamedTuple):
    """The mean, the 95th percentile and the largest of absolute errors."""

    mean: float
    percentile_95: float
    worst: float


def _validate(table: PublishedTable) -> ValidatedTable:
    rows = _speedups(table) if table.reference else tuple(_predict(table, row) for row in table.rows)
    figures, groups = _figures(rows), _groups(table, rows)
    means = (figures.mean, *(group.mean_absolute_error for group in groups))
    percentiles = (figures.percentile_95, *(group.percentile_95 for group in groups))
    passed = all(mean <= table.mean_threshold for mean in means)
    passed = passed and all(error <= (table.percentile_95_threshold or math.inf) for error in percentiles)
    return ValidatedTable(
        table=table.name,
        citation=table.citation,
        prediction=table.prediction,
        unit=f"speed of {table.reference.name} over the row's" if table.reference else table.unit,
        rows=rows,
        groups=groups,
        mean_absolute_error=figures.mean,
        percentile_95=figures.percentile_95,
        worst=figures.worst,
        coverage=coverage([row.inside for row in rows]),
        thresholds=ErrorThresholds(
            mean=table.mean_threshold,
            worst=table.worst_threshold,
            percentile_95=table.percentile_95_threshold,
        ),
        passed=passed and figures.worst <= table.worst_threshold,
    )


def coverage(inside: Sequence[bool | None]) -> float | None:
    """Return the fraction of values inside their intervals, among those with an interval; None without any."""
    known = [is_inside for is_inside in inside if is_inside is not None]
    return fmean(known) if known else None


def _groups(table: PublishedTable, rows: Sequence[PredictedRow]) -> tuple[GroupErrors, ...]:
    """Return the number of rows and the errors of every group, in the order of their first rows."""
    members: dict[str, list[PredictedRow]] = {}
    for row, found in zip(table.rows, rows, strict=True):
        if row.group:
            members.setdefault(row.group, []).append(found)
    return tuple(_group(name, found) for name, found in members.items())


def _group(name: str, rows: Sequence[PredictedRow]) -> GroupErrors:
    figures = _figures(rows)
    return GroupErrors(
        group=name,
        rows=len(rows),
        mean_absolute_error=figures.mean,
        percentile_95=figures.percentile_95,
        worst=figures.worst,
        coverage=coverage([row.inside for row in rows]),
    )


def _figures(rows: Sequence[PredictedRow]) -> _Figures:
    errors = [abs(row.error) for row in rows]
    return _Figures(fmean(errors), float(np.quantile(errors, 0.95)), max(errors))


@collector_paused()
def predicted(table: PublishedTable, row: PublishedRow) -> Prediction:
    """Return the prediction of a row in SI units."""
    if table.prediction == "collective_time_s":
        return Prediction(collective_time_s(entry_of(table, row), table.path, where_of(table, row)))
    if table.prediction in _OF_OUTCOMES:
        return _result_of(table, row)
    scenario = step_from_mapping(entry_of(table, row), table.path, where_of(table, row)).decided()
    if scenario.cluster is None and table.prediction != "iteration_time_s":
        rule, remedy = f"a textbook workload has no {table.prediction}", "compare iteration_time_s"
        raise ScenarioError(Origin(str(table.path)), "measured.prediction", rule, remedy)
    return _PREDICT[table.prediction](scenario)


def _result_of(table: PublishedTable, row: PublishedRow) -> Prediction:
    """Return a result that the row of a sweep has. Raises ScenarioError for a kind of work without it."""
    scenario = scenario_from_mapping(entry_of(table, row), table.path, where_of(table, row))
    value = getattr(scenario.workload.simulator()(scenario).row, table.prediction, None)
    if value is None:
        rule = f"{scenario.workload.name} has no {table.prediction}"
        raise ScenarioError(Origin(str(table.path)), "measured.prediction", rule, "compare iteration_time_s")
    return Prediction(value)


def _predict(table: PublishedTable, row: PublishedRow) -> PredictedRow:
    """Return one row's measured and predicted value in the table's unit, and the relative error."""
    value, interval = predicted(table, row)
    _, factor = UNITS[table.unit]
    return PredictedRow(
        name=row.name,
        measured=row.measured / factor,
        predicted=value / factor,
        error=value / row.measured - 1.0,
        interval=(interval.low / factor, interval.high / factor) if interval else None,
        inside=interval.low <= row.measured <= interval.high if interval else None,
    )


def _speedups(table: PublishedTable) -> tuple[PredictedRow, ...]:
    """Return how many times as fast as each row the table's reference is; errors that all rows share cancel."""
    reference = table.reference
    assert reference is not None
    value, _ = predicted(table, reference)
    rows = []
    for row in table.rows:
        measured = table.speedup(row.measured, reference.measured)
        ratio = table.speedup(predicted(table, row).value, value)
        error = ratio / measured - 1.0
        rows.append(
            PredictedRow(name=row.name, measured=measured, predicted=ratio, error=error, interval=None, inside=None)
        )
    return tuple(rows)


def where_of(table: PublishedTable, row: PublishedRow) -> str:
    """Return the position of a row for error messages."""
    return f"{table.data}:{row.line}: row {row.name!r} of {table.path.name}"


def entry_of(table: PublishedTable, row: PublishedRow) -> dict[str, Any]:
    """Return the table's base with the row's keys put in."""
    return with_values(table.base, row.overrides, Origin(option=where_of(table, row)))


def _iteration_time_s(scenario: StepScenario) -> Prediction:
    pricing = scenario.pricing()
    run = simulate(plan_of(scenario), pricing)
    return Prediction(run.iteration_time_s, _interval(run, pricing))


def _rate(key: str) -> Callable[[StepScenario], Prediction]:
    def predict(scenario: StepScenario) -> Prediction:
        pricing = scenario.pricing()
        run = simulate(plan_of(scenario), pricing)
        rate, interval = getattr(scenario.rates(run), key), _interval(run, pricing)
        assert rate is not None  # only textbook workloads have none
        assert interval is not None
        work = rate * run.iteration_time_s
        return Prediction(rate, Interval(work / interval.high, work / interval.low))

    return predict


def _interval(run: SimulatedRun, pricing: Pricing) -> Interval | None:
    """Return the 90 % interval of the step time, None if times are stated."""
    if not isinstance(pricing, ClusterPricing):
        return None
    return step_time_interval(critical_path(run), errors_of(pricing)).bounds


def _activation_bytes(scenario: StepScenario) -> Prediction:
    """Return the peak bytes that the first stage's layers keep for backward between two calls."""
    program = plan_of(scenario).programs[0]
    of_layers = _touched_by_layers(program)
    kept = kept_bytes(program, {n for n in of_layers if program.buffers[n].kind is Kind.ACTIVATION})
    return Prediction(float(kept))


def _touched_by_layers(program: Program) -> set[str]:
    """Return the buffers of a program that an op of a transformer layer reads or writes."""
    ops = (op for task in program.tasks.values() for op in task.ops if op.name.startswith("layer"))
    return {name for op in ops for name in (*op.reads, *op.writes)}


def _peak_memory_bytes(scenario: StepScenario) -> Prediction:
    """Return the largest peak memory of any rank."""
    return Prediction(float(max(memory_use(program).peak_bytes for program in plan_of(scenario).programs)))


def _busy_fraction(scenario: StepScenario) -> Prediction:
    """Return the fraction of a step in which a rank computes, averaged over ranks."""
    run = simulate(plan_of(scenario), scenario.pricing())
    summary = summarise(scenario, run)
    idle = summary.bubble_fraction + summary.exposed_communication_fraction
    return Prediction(1.0 - idle)


_OF_OUTCOMES: Final = frozenset({"output_tokens_per_s", "mean_ttft_s", "mean_tpot_s", "mean_jct_s"})
"""Predictions that stand in the row of a sweep, under the same name."""

_PREDICT: Final[Mapping[str, Callable[[StepScenario], Prediction]]] = {
    "iteration_time_s": _iteration_time_s,
    "tokens_per_s": _rate("tokens_per_s"),
    "model_flop_per_s_per_device": _rate("model_flop_per_s_per_device"),
    "hardware_flop_per_s_per_device": _rate("hardware_flop_per_s_per_device"),
    "activation_bytes": _activation_bytes,
    "peak_memory_bytes": _peak_memory_bytes,
    "busy_fraction": _busy_fraction,
}
