"""Fit constants of a framework or a profile to measured steps: on the rows of one group, judged on the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.calibration.document import CalibratedProfile
from costmodels.calibration.uncertainty import Estimate, estimates
from costmodels.hardware import load_node
from scenarios.calibration.constants import Constant, applied, parse_constant
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.loader import scenario_from_mapping
from scenarios.running.runner import devices_of, plan_of, pricing_of
from scenarios.summaries.step import rates
from scenarios.validation.published import entry_of, where_of
from sim.engine.pricing import ClusterPricing
from sim.engine.simulate import simulate
from sim.plan.program import Plan
from traces.published import PublishedRow, PublishedTable, load_table

FITTED: Final = "fitted"
"""What the group is called that constants are fitted to, in tables whose rows are grouped."""
OF_STEPS: Final = frozenset(
    {"iteration_time_s", "tokens_per_s", "model_flop_per_s_per_device", "hardware_flop_per_s_per_device"}
)
"""What of a step tells how long it takes."""
OUTLIER: Final = 0.01
"""Residuals beyond it weigh as absolute ones (soft l1): tables are judged by their mean absolute error."""
_REACH: Final = 5.0
"""How far from its start the logarithm of a constant may go."""
_STEP: Final = 0.05
"""Derivatives are over so much of a logarithm: launches decide some steps and others not, which is no smooth thing."""
SCHEMA: Final = "meshtwin.fit/1"
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step: what was run, on what, how long it took, and whether constants are fitted to it."""

    name: str
    plan: Plan
    pricing: ClusterPricing
    measured_s: float
    fitted: bool

    def predicted_s(self, constants: Mapping[Constant, float]) -> float:
        """Return the step time with those of these constants that its scenario has."""
        return simulate(self.plan, applied(self.pricing, constants)).iteration_time_s


@dataclass(frozen=True, slots=True)
class StepFit:
    """What a fit began with and found, constant by constant, and log(predicted/measured) of every step with that."""

    steps: Sequence[MeasuredStep]
    starts: Mapping[Constant, float]
    found: Mapping[Constant, Estimate]
    residuals: Array

    def errors(self, *, fitted: bool) -> Array:
        """Return the relative errors of the steps that were fitted, or of those that were not."""
        chosen = np.array([step.fitted is fitted for step in self.steps])
        errors: Array = np.expm1(self.residuals[chosen])
        return errors


def measured_steps(tables: Sequence[Path], profile: CalibratedProfile | None = None) -> list[MeasuredStep]:
    """Return the steps of tables of step times or rates. Of a table without groups all rows are fitted.

    ``profile``: what takes the place of the rows' own. Raises TraceError for a bad table, ScenarioError for one of
    other measurements, for a row that is no scenario, and for one of another machine than the profile's.
    """
    loaded = [load_table(path) for path in tables]
    for table in loaded:
        if table.prediction not in OF_STEPS:
            raise _unfit(table, f"these are no times or rates of steps, but {table.prediction}")
    return [_step(table, row, profile) for table in loaded for row in table.rows]


def _step(table: PublishedTable, row: PublishedRow, profile: CalibratedProfile | None) -> MeasuredStep:
    scenario = scenario_from_mapping(entry_of(table, row), table.path, where_of(table, row))
    if profile is not None and scenario.cluster is not None:
        refuse_other_machine(profile, scenario.cluster.node, table, row)
        scenario = replace(scenario, cluster=replace(scenario.cluster, calibrated=profile))
    pricing, plan, measured_s = pricing_of(scenario), plan_of(scenario), row.measured
    if not isinstance(pricing, ClusterPricing):
        raise _unfit(table, "a textbook workload has stated times, which nothing can be fitted to")
    if table.prediction != "iteration_time_s":
        run = simulate(plan, pricing)
        rate = rates(scenario, run, devices_of(scenario))[table.prediction]
        assert rate is not None  # only textbook workloads have none
        measured_s = rate * run.iteration_time_s / row.measured
    return MeasuredStep(f"{table.name}: {row.name}", plan, pricing, measured_s, row.group in {FITTED, ""})


def refuse_other_machine(profile: CalibratedProfile, node: str, table: PublishedTable, row: PublishedRow) -> None:
    """Raise ScenarioError for a row of another generation of devices than a profile's.

    Where the profile brings the rates of the machine that it was measured on, the row must be of this very node.
    """
    of_row, of_profile = load_node(node), load_node(profile.node)
    alike = node == profile.node if profile.measured else of_row.device.generation == of_profile.device.generation
    if not alike:
        rule = f"the row is of {node}, and {profile.profile.name} is a profile of {profile.node}"
        raise ScenarioError(Origin(option=where_of(table, row)), "", rule, "name tables of the profile's machine")


def _unfit(table: PublishedTable, rule: str) -> ScenarioError:
    return ScenarioError(Origin(str(table.path)), "measured.prediction", rule, "name a table of iteration_time_s")


def fit_steps(
    steps: Sequence[MeasuredStep],
    names: Sequence[str],
    *,
    every: int = 1,
    progress: Callable[[str], object] = lambda _: None,
) -> StepFit:
    """Return the constants, of those named, that fit the fitted steps best, from those of the first step that has them.

    ``every``: take one fitted step of so many, for speed. Least squares of logarithms up to 1 %, beyond it least
    absolute ones (soft l1), in the logarithms of the constants. Raises ScenarioError for a constant that there is not,
    that starts at 0, and where there are fewer steps than constants.
    """
    starts = {constant: _start(steps, constant) for constant in map(parse_constant, dict.fromkeys(names))}
    fitted = [step for step in steps if step.fitted][::every]
    if len(fitted) <= len(starts):
        rule = f"{len(fitted)} rows to fit to cannot settle {len(starts)} constants"
        raise ScenarioError(Origin(option="--constant"), "", rule, "name fewer constants, or take more rows")
    begin = np.log(list(starts.values()))
    low, high = begin - _REACH, np.minimum(begin + _REACH, [np.log(constant.most) for constant in starts])

    def constants_at(logs: Array) -> dict[Constant, float]:
        return dict(zip(starts, map(float, np.exp(logs)), strict=True))

    def residuals(logs: Array) -> Array:
        found = _residuals(fitted, constants_at(logs))
        shown = ", ".join(f"{c.name} {c.text(value)}" for c, value in constants_at(logs).items())
        progress(f"mean error {np.abs(np.expm1(found)).mean():.2%} with {shown}")
        return found

    best = least_squares(
        lambda x: residuals(begin + x - 1.0), np.minimum(1.0, high - begin + 0.999),
        bounds=(low - begin + 1.0, high - begin + 1.0),
        loss="soft_l1", f_scale=OUTLIER, diff_step=_STEP, x_scale=0.1, xtol=1e-3, ftol=1e-3, max_nfev=15,
    )  # fmt: skip
    logs = begin + best.x - 1.0
    found = dict(zip(starts, estimates(residuals, logs, low, high, OUTLIER), strict=True))
    return StepFit(steps, starts, found, _residuals(steps, constants_at(logs)))


def _start(steps: Sequence[MeasuredStep], constant: Constant) -> float:
    """Return a constant's value in the first scenario that has one."""
    start = next((value for step in steps if (value := constant.value(step.pricing)) > 0.0), 0.0)
    if not start:
        rule = f"{constant.name} needs a start above 0, and no scenario has one"
        raise ScenarioError(Origin(option="--constant"), "", rule, "write one into the table's base")
    return start


def _residuals(steps: Sequence[MeasuredStep], constants: Mapping[Constant, float]) -> Array:
    return np.array([np.log(step.predicted_s(constants) / step.measured_s) for step in steps])


def summarise_fit(fit: StepFit) -> dict[str, Any]:
    """Return a fit as ``simulate fit --json`` prints it (docs/calibration.md)."""
    return {
        "schema": SCHEMA,
        "constants": [
            {
                "name": constant.name,
                "start": fit.starts[constant],
                "value": estimate.value,
                "standard_error": estimate.standard_error,
                "at_limit": estimate.at_limit,
            }
            for constant, estimate in fit.found.items()
        ],
        "fitted": _figures(fit.errors(fitted=True)),
        "held_out": _figures(fit.errors(fitted=False)),
        "rows": [
            {"name": step.name, "fitted": step.fitted, "error": float(np.expm1(residual))}
            for step, residual in zip(fit.steps, fit.residuals, strict=True)
        ],
    }


def _figures(errors: Array) -> dict[str, Any] | None:
    """Return how many rows there are and how far they are off, None where there are none."""
    if not len(errors):
        return None
    off = np.abs(errors)
    return {
        "rows": len(errors),
        "mean_absolute_error": float(off.mean()),
        "percentile_95": float(np.quantile(off, 0.95)),
        "worst": float(off.max()),
        "root_mean_square": float(np.sqrt(np.mean(np.log1p(errors) ** 2))),
    }
