"""Predict published measurements, and say how far off the predictions are."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from scenarios.errors import Origin, ScenarioError
from scenarios.loader import Scenario, scenario_from_mapping
from scenarios.runner import plan_of, simulate
from sim.engine.memory import memory_use
from sim.plan.buffer import Kind
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
    return {
        "table": table.name,
        "citation": table.citation,
        "prediction": table.prediction,
        "unit": table.unit,
        "rows": rows,
        "mean_absolute_error": mean,
        "worst": worst,
        "thresholds": {"mean": table.mean_threshold, "worst": table.worst_threshold},
        "passed": mean <= table.mean_threshold and worst <= table.worst_threshold,
    }


def _predict(table: PublishedTable, row: PublishedRow) -> dict[str, Any]:
    """Return one row's measured and predicted value in the table's unit, and the relative error."""
    predicted = _PREDICT[table.prediction](_scenario(table, row))
    _, factor = UNITS[table.unit]
    return {
        "name": row.name,
        "measured": row.measured / factor,
        "predicted": predicted / factor,
        "error": predicted / row.measured - 1.0,
    }


def _scenario(table: PublishedTable, row: PublishedRow) -> Scenario:
    """Return the table's scenario with the row's keys put in."""
    where = f"{table.data}, row {row.name!r}"
    data = deepcopy(dict(table.base))
    for key, value in row.overrides.items():
        *above, last = key.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                rule, remedy = f"{name} holds no mapping in the base of {table.path}", "write it as a mapping there"
                raise ScenarioError(Origin(option=where), key, rule, remedy)
        section[last] = value
    return scenario_from_mapping(data, table.path, where)


def _from_summary(key: str) -> Callable[[Scenario], float]:
    def predict(scenario: Scenario) -> float:
        return float(simulate(scenario).summary[key])

    return predict


def _activation_bytes(scenario: Scenario) -> float:
    """Return what the first stage keeps for its backward passes when it holds most."""
    return float(memory_use(plan_of(scenario).programs[0]).peak_by_kind_bytes[Kind.ACTIVATION])


def _peak_memory_bytes(scenario: Scenario) -> float:
    return float(memory_use(plan_of(scenario).programs[0]).peak_bytes)


_PREDICT: Final[Mapping[str, Callable[[Scenario], float]]] = {
    "iteration_time_s": _from_summary("iteration_time_s"),
    "tokens_per_s": _from_summary("tokens_per_s"),
    "model_flop_per_s_per_device": _from_summary("model_flop_per_s_per_device"),
    "hardware_flop_per_s_per_device": _from_summary("hardware_flop_per_s_per_device"),
    "activation_bytes": _activation_bytes,
    "peak_memory_bytes": _peak_memory_bytes,
}
