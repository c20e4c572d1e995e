"""Fit a framework's constants to measured step times: on one half of published rows, judged on the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.software import Software
from scenarios.reading.loader import scenario_from_mapping
from scenarios.running.runner import plan_of, pricing_of
from scenarios.validation.published import entry_of, where_of
from sim.engine.pricing import ClusterPricing
from sim.engine.simulate import simulate
from sim.plan.program import Plan
from traces.published import load_table

FITTED: Final = "fitted"
"""What the group is called that constants are fitted to."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A published step time: what was run, on what, and whether constants are fitted to it."""

    name: str
    plan: Plan
    pricing: ClusterPricing
    measured_s: float
    fitted: bool

    def predicted_s(self, constants: Mapping[str, Any]) -> float:
        """Return the step time under a framework with those of these constants that its scenario has."""
        own = self.pricing.software
        used = {name: value for name, value in constants.items() if getattr(own, name) != getattr(Software(), name)}
        software = replace(own, **used)
        return simulate(self.plan, self.pricing.with_software(software)).iteration_time_s


@dataclass(frozen=True, slots=True)
class SoftwareFit:
    """Constants by their names in ``Software``, and log(predicted/measured) of every step with them."""

    constants: Mapping[str, float]
    residuals: Array


def measured_steps(tables: Sequence[Path]) -> list[MeasuredStep]:
    """Return the steps of published tables whose rows are grouped by halves."""
    steps = []
    for table in map(load_table, tables):
        for row in table.rows:
            scenario = scenario_from_mapping(entry_of(table, row), table.path, where_of(table, row))
            pricing = pricing_of(scenario)
            assert isinstance(pricing, ClusterPricing)
            steps.append(MeasuredStep(row.name, plan_of(scenario), pricing, row.measured, row.group == FITTED))
    return steps


def fit_software(
    steps: Sequence[MeasuredStep],
    names: Sequence[str],
    *,
    every: int = 1,
    progress: Callable[[str], object] = lambda _: None,
) -> SoftwareFit:
    """Return the constants, of those named, that fit the fitted steps best, from those of the first step's scenario.

    A constant that a scenario leaves at its default stays there, so that tables may share some and have others of
    their own. ``every``: take one fitted step of so many, for speed. Least squares of logarithms up to 1 %, beyond it
    least absolute ones (soft l1), as tables are judged by their mean absolute error; in the logarithms of the constants
    over their starts. Raises ValueError for a constant that no framework has or that starts at 0.
    """
    start = np.array([_start(steps[0].pricing.software, name) for name in names])
    fitted = [step for step in steps if step.fitted][::every]

    def constants_at(x: Array) -> dict[str, float]:
        return dict(zip(names, map(float, start * np.exp(x - 1.0)), strict=True))

    def residuals(x: Array) -> Array:
        found = _residuals(fitted, constants_at(x))
        shown = ", ".join(f"{name} {value:.4g}" for name, value in constants_at(x).items())
        progress(f"mean error {np.abs(np.expm1(found)).mean():.4f} with {shown}")
        return found

    best = least_squares(
        residuals, np.ones(len(names)), loss="soft_l1", f_scale=0.01, diff_step=0.05, xtol=5e-3, ftol=5e-3, max_nfev=8
    )
    return SoftwareFit(constants_at(best.x), _residuals(steps, constants_at(best.x)))


def _start(software: Software, name: str) -> float:
    """Return a constant's start, in the scenario."""
    known = {field.name for field in fields(Software)} - {"fused_softmax"}
    if name not in known:
        message = f"a framework has no constant {name}; it has {', '.join(sorted(known))}"
        raise ValueError(message)
    start = float(getattr(software, name) or 0.0)
    if start <= 0.0:
        message = f"{name} needs a start above 0 in the scenario"
        raise ValueError(message)
    return start


def _residuals(steps: Sequence[MeasuredStep], constants: Mapping[str, float]) -> Array:
    return np.array([np.log(step.predicted_s(constants) / step.measured_s) for step in steps])
