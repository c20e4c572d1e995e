"""Predict published measurements, and say how far off the predictions are."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from scenarios.collective_row import collective_time_s
from scenarios.errors import Origin, ScenarioError
from scenarios.loader import Scenario, scenario_from_mapping
from scenarios.runner import devices_of, plan_of, pricing_of
from scenarios.summary import rates, summarise
from sim.engine.memory import kept_bytes, memory_use
from sim.engine.simulate import simulate
from sim.plan.buffer import Kind
from sim.plan.program import Program
from traces.published import UNITS, PublishedRow, PublishedTable, load_table, published_tables


def run(tables: tuple[Path, ...] = (), data: Path | None = None) -> dict[str, Any]:
    """Return every table's rows, measured and predicted, and whether they are within its thresholds.

    No table named: all that come with meshtwin. ``data``: a CSV with other rows for the one table named. Values are
    in the table's unit, errors are fractions of the measured value, negative where the prediction is less.
    Raises TraceError for a bad table, ScenarioError for a row that is no scenario.
    """
    loaded = [load_table(path, data) for path in tables or published_tables()]
    return {"tables": [_validate(table) for table in loaded]}


def _validate(table: PublishedTable) -> dict[str, Any]:
    rows = [_predict(table, row) for row in table.rows]
    errors = [abs(row["error"]) for row in rows]
    mean, worst = fmean(errors), max(errors)
    groups = _groups(table, errors)
    passed = all(group["mean_absolute_error"] <= table.mean_threshold for group in groups)
    return {
        "table": table.name,
        "citation": table.citation,
        "prediction": table.prediction,
        "unit": table.unit,
        "rows": rows,
        "groups": groups,
        "mean_absolute_error": mean,
        "worst": worst,
        "thresholds": {"mean": table.mean_threshold, "worst": table.worst_threshold},
        "passed": passed and mean <= table.mean_threshold and worst <= table.worst_threshold,
    }


def _groups(table: PublishedTable, errors: list[float]) -> list[dict[str, Any]]:
    """Return the number of rows and the mean error of every group, in the order of their first rows."""
    members: dict[str, list[float]] = {}
    for row, error in zip(table.rows, errors, strict=True):
        if row.group:
            members.setdefault(row.group, []).append(error)
    return [
        {"group": name, "rows": len(found), "mean_absolute_error": fmean(found), "worst": max(found)}
        for name, found in members.items()
    ]


def _predict(table: PublishedTable, row: PublishedRow) -> dict[str, Any]:
    """Return one row's measured and predicted value in the table's unit, and the relative error."""
    if table.prediction == "collective_time_s":
        predicted = collective_time_s(_entry(table, row), table.path, _where(table, row))
    else:
        scenario = scenario_from_mapping(_entry(table, row), table.path, _where(table, row))
        if scenario.cluster is None and table.prediction != "iteration_time_s":
            rule, remedy = f"a textbook workload has no {table.prediction}", "compare iteration_time_s"
            raise ScenarioError(Origin(str(table.path)), "measured.prediction", rule, remedy)
        predicted = _PREDICT[table.prediction](scenario)
    _, factor = UNITS[table.unit]
    return {
        "name": row.name,
        "measured": row.measured / factor,
        "predicted": predicted / factor,
        "error": predicted / row.measured - 1.0,
    }


def _where(table: PublishedTable, row: PublishedRow) -> str:
    return f"{table.data}:{row.line}: row {row.name!r}"


def _entry(table: PublishedTable, row: PublishedRow) -> dict[str, Any]:
    """Return the table's base with the row's keys put in."""
    data = deepcopy(dict(table.base))
    for key, value in row.overrides.items():
        *above, last = key.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                rule, remedy = f"{name} holds no mapping in the base of {table.path}", "write it as a mapping there"
                raise ScenarioError(Origin(option=_where(table, row)), key, rule, remedy)
        section[last] = value
    return data


def _iteration_time_s(scenario: Scenario) -> float:
    return simulate(plan_of(scenario), pricing_of(scenario)).iteration_time_s


def _rate(key: str) -> Callable[[Scenario], float]:
    def predict(scenario: Scenario) -> float:
        run = simulate(plan_of(scenario), pricing_of(scenario))
        rate = rates(scenario, run, devices_of(scenario))[key]
        assert rate is not None  # only textbook workloads have none
        return rate

    return predict


def _activation_bytes(scenario: Scenario) -> float:
    """Return what the first stage's layers keep for backward between two calls, when they hold most."""
    program = plan_of(scenario).programs[0]
    of_layers = _touched_by_layers(program)
    return float(kept_bytes(program, {n for n in of_layers if program.buffers[n].kind is Kind.ACTIVATION}))


def _touched_by_layers(program: Program) -> set[str]:
    """Return the buffers of a program that an op of a transformer layer reads or writes."""
    ops = (op for task in program.tasks.values() for op in task.ops if op.name.startswith("layer"))
    return {name for op in ops for name in (*op.reads, *op.writes)}


def _peak_memory_bytes(scenario: Scenario) -> float:
    """Return the first stage's peak memory."""
    return float(memory_use(plan_of(scenario).programs[0]).peak_bytes)


def _busy_fraction(scenario: Scenario) -> float:
    """Return the part of a step in which a rank computes, mean over ranks."""
    run = simulate(plan_of(scenario), pricing_of(scenario))
    summary = summarise(scenario, run, devices_of(scenario))
    return 1.0 - float(summary["bubble_fraction"]) - float(summary["exposed_communication_fraction"])


_PREDICT: Final[Mapping[str, Callable[[Scenario], float]]] = {
    "iteration_time_s": _iteration_time_s,
    "tokens_per_s": _rate("tokens_per_s"),
    "model_flop_per_s_per_device": _rate("model_flop_per_s_per_device"),
    "hardware_flop_per_s_per_device": _rate("hardware_flop_per_s_per_device"),
    "activation_bytes": _activation_bytes,
    "peak_memory_bytes": _peak_memory_bytes,
    "busy_fraction": _busy_fraction,
}
