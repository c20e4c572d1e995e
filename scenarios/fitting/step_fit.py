"""The fit of a framework's or a profile's constants to measured steps: fitted to one group, judged on the others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from scipy.optimize import least_squares

from costmodels.calibration.uncertainty import Estimate, estimates
from costmodels.units import format_count, format_percent
from scenarios.errors import Origin, ScenarioError
from scenarios.fitting.constants import Constant, parse_constant
from scenarios.fitting.measured_steps import Array, StepFacts
from scenarios.fitting.step_workers import Steps
from scenarios.summaries.measured.fit import FitErrors, FitRow, FitSummary, FittedConstant

OUTLIER: Final = 0.01
"""Residual above which the loss is absolute (soft l1), as tables are judged by their mean absolute error."""
_REACH: Final = 5.0
"""Largest change of a constant's logarithm from its start."""
_STEP: Final = 0.05
"""Step of finite differences, in logarithms: wide, as the time is not smooth where launches decide only some steps."""


class StepFit(Struct, frozen=True):
    """Start and result of a fit, constant by constant, and log(predicted/measured) of every step with the result."""

    steps: Sequence[StepFacts]
    starts: Mapping[Constant, float]
    found: Mapping[Constant, Estimate]
    residuals: Array

    def errors(self, *, fitted: bool) -> Array:
        """Return the relative errors of the fitted steps, or of the other steps."""
        errors: Array = np.expm1(self.logarithms(fitted=fitted))
        return errors

    def logarithms(self, *, fitted: bool) -> Array:
        """Return log(predicted/measured) of the same steps."""
        chosen: Array = self.residuals[np.array([step.fitted is fitted for step in self.steps])]
        return chosen


def fit_steps(
    steps: Steps,
    names: Sequence[str],
    *,
    every: int = 1,
    progress: Callable[[str], object] = lambda _: None,
) -> StepFit:
    """Return the named constants that fit the fitted steps best, starting from the first step that has each.

    ``every``: fit one step in this many, for speed.

    The loss is soft l1 of the logarithms of time ratios: squared up to 1 %, absolute beyond; the variables are the
    constants' logarithms. Raises ScenarioError for an unknown constant, for one that starts at 0, and for fewer steps
    than constants.
    """
    facts = steps.facts
    starts = {constant: _start(facts, constant) for constant in map(parse_constant, dict.fromkeys(names))}
    fitted = [place for place, step in enumerate(facts) if step.fitted][::every]
    if len(fitted) <= len(starts):
        rule = f"{format_count(len(fitted), 'row')} to fit to cannot settle {format_count(len(starts), 'constant')}"
        raise ScenarioError(Origin(option="--constant"), "", rule, "name fewer constants, or take more rows")
    begin = np.log(list(starts.values()))
    low, high = begin - _REACH, np.minimum(begin + _REACH, [np.log(constant.most) for constant in starts])

    def constants_at(logs: Array) -> dict[Constant, float]:
        return dict(zip(starts, map(float, np.exp(logs)), strict=True))

    def residuals(logs: Array) -> Array:
        found = _residuals(steps, fitted, constants_at(logs))
        shown = ", ".join(f"{c.name} {c.text(value)}" for c, value in constants_at(logs).items())
        progress(f"mean error {format_percent(float(np.abs(np.expm1(found)).mean()), 2)} with {shown}")
        return found

    best = least_squares(
        lambda x: residuals(begin + x - 1.0), np.minimum(1.0, high - begin + 0.999),
        bounds=(low - begin + 1.0, high - begin + 1.0),
        loss="soft_l1", f_scale=OUTLIER, diff_step=_STEP, x_scale=0.1, xtol=1e-3, ftol=1e-3, max_nfev=15,
    )  # fmt: skip
    logs = begin + best.x - 1.0
    found = dict(zip(starts, estimates(residuals, logs, low, high, OUTLIER), strict=True))
    return StepFit(facts, starts, found, _residuals(steps, range(len(facts)), constants_at(logs)))


def _start(steps: Sequence[StepFacts], constant: Constant) -> float:
    """Return a constant's value in the first scenario that has one."""
    start = next((value for step in steps if (value := constant.value(step.software, step.profile)) > 0.0), 0.0)
    if not start:
        rule = f"{constant.name} needs a start above 0, and no scenario of the tables has one"
        place = (
            f"section {constant.section} of the profile" if constant.section else "section software of a table's base"
        )
        remedy = f"write {constant.key}, with a first guess, into the {place}"
        raise ScenarioError(Origin(option=f"--constant {constant.name}"), "", rule, remedy)
    return start


def _residuals(steps: Steps, which: Sequence[int], constants: Mapping[Constant, float]) -> Array:
    measured_s = np.array([steps.facts[place].measured_s for place in which])
    found: Array = np.log(steps.predicted_s(constants, which) / measured_s)
    return found


def summarise_fit(fit: StepFit) -> FitSummary:
    """Return a fit as ``simulate fit --json`` prints it (docs/calibration.md)."""
    return FitSummary(
        constants=tuple(
            FittedConstant(
                name=constant.name,
                start=fit.starts[constant],
                value=estimate.value,
                standard_error=estimate.standard_error,
                at_limit=estimate.at_limit,
            )
            for constant, estimate in fit.found.items()
        ),
        fitted=_errors(fit.logarithms(fitted=True)),
        held_out=_errors(fit.logarithms(fitted=False)),
        rows=tuple(
            FitRow(name=step.name, fitted=step.fitted, error=float(np.expm1(residual)))
            for step, residual in zip(fit.steps, fit.residuals, strict=True)
        ),
    )


def _errors(logarithms: Array) -> FitErrors | None:
    """Return the number of rows and their errors, None without rows."""
    if not len(logarithms):
        return None
    off = np.abs(np.expm1(logarithms))
    return FitErrors(
        rows=len(logarithms),
        mean_absolute_error=float(off.mean()),
        percentile_95=float(np.quantile(off, 0.95)),
        worst=float(off.max()),
        root_mean_square=float(np.sqrt(np.mean(logarithms**2))),
    )
