"""Curves of quality: a metric of held-out text against steps and tokens, per model and policy, as CSV files.

    curves = read_curves("traces/quality/python_help.csv")
    curve = curve_of(curves, curves[0].model, "switch")
    curve.steps_to(4.0), curve.tokens_to(4.0)
    curve.time_to(4.0, step_times_s)          # a step's seconds at every point, from simulations

Learning is never predicted. A policy that changes what a model computes (another gate, dropped choices) needs a curve
of its own; that of another is taken only if the caller says so.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError

FOLDER: Final = Path(__file__).parent / "quality"
COLUMNS: Final = ("model", "gate", "step", "tokens", "active_experts", "metric_name", "metric")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QualityCurve:
    """One training: after ``steps`` steps and ``tokens`` tokens the metric, which falls, is ``metric`` or better.

    ``active_experts``: mean number of experts that a token chose around each point.
    """

    file: str
    model: str
    gate: str
    metric_name: str
    steps: Floats
    tokens: Floats
    active_experts: Floats
    metric: Floats

    def tokens_to(self, metric: float) -> float:
        """Return the tokens after which the metric is reached, linear in the logarithm of tokens between points."""
        return float(np.exp(self._at(metric, np.log(self.tokens))))

    def steps_to(self, metric: float) -> float:
        """Return the steps after which the metric is reached."""
        return float(np.interp(self.tokens_to(metric), self.tokens, self.steps))

    def time_to(self, metric: float, step_times_s: Sequence[float]) -> float:
        """Return the seconds after which the metric is reached. ``step_times_s``: of the steps up to each point."""
        ends = np.cumsum(np.diff(self.steps, prepend=0.0) * np.asarray(step_times_s))
        return float(np.interp(self.steps_to(metric), [0.0, *self.steps], [0.0, *ends]))

    def _at(self, metric: float, values: Floats) -> float:
        best = np.minimum.accumulate(self.metric)
        if not best[-1] <= metric <= best[0]:
            rule = f"{self.metric_name} of gate {self.gate} goes from {best[0]:g} to {best[-1]:g}, not to {metric:g}"
            raise TraceError(self.file, rule, f"write a number of {best[-1]:g} to {best[0]:g}", key="metric")
        after = int(np.argmax(best <= metric))
        if not after or best[after] == metric:
            return float(values[after])
        part = (best[after - 1] - metric) / (best[after - 1] - best[after])
        return float(values[after - 1] + part * (values[after] - values[after - 1]))


def read_curves(file: str | Path) -> tuple[QualityCurve, ...]:
    """Return the curves of a file, in its order. Raises TraceError for other columns or for what is no number."""
    with Path(file).open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise TraceError(str(file), "the columns are others", f"write {','.join(COLUMNS)}", line=1)
        rows: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
        for row in reader:
            name = row["model"], row["gate"], row["metric_name"]
            rows.setdefault(name, []).append(_numbers(str(file), reader.line_num, row))
    return tuple(QualityCurve(str(file), *name, *np.array(points).T) for name, points in rows.items())


def _numbers(file: str, line: int, row: dict[str, str]) -> tuple[float, ...]:
    """Return steps, tokens, active experts and the metric of a row."""
    found = []
    for key in ("step", "tokens", "active_experts", "metric"):
        try:
            found.append(float(row[key]))
        except (TypeError, ValueError):
            raise TraceError(file, f"{row[key]!r} is no number", "write a number", line=line, key=key) from None
    return tuple(found)


def curve_of(
    curves: Sequence[QualityCurve], model: str, gate: str, *, assume_equal_to: str | None = None
) -> QualityCurve:
    """Return the curve of a model with a gate.

    ``assume_equal_to``: the gate whose curve is taken, as an assumption, where there is none of ``gate``.
    Raises TraceError where there is no curve, and nothing is assumed.
    """
    of_model = {curve.gate: curve for curve in curves if curve.model == model}
    for name in (gate, assume_equal_to):
        if name in of_model:
            return of_model[name]
    files = ", ".join(dict.fromkeys(curve.file for curve in curves))
    rule = f"there is no curve of {model} with gate {gate}, and that of another gate says nothing of it"
    known = ", ".join(of_model) or "another model's, of " + ", ".join(dict.fromkeys(curve.model for curve in curves))
    remedy = f"record one, or state assume_equal_to ({known})"
    raise TraceError(files, rule, remedy, key="gate")
