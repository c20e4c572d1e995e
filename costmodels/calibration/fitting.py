"""Least squares on logarithms of times: twice as long weighs as much as half as long."""

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.calibration.uncertainty import Estimate, estimates
from costmodels.errors import CostModelError

_OUTLIER: Final = 0.3
"""Scale of the soft-l1 loss of logarithms: noise of a shared machine has a long tail, so large residuals weigh less."""


_STALL: Final = 10.0
"""How many times longer than expected a call may be and still weigh by its length."""


class CalibrationError(CostModelError):
    """Measurements without enough information for a fit."""


class Parameter(Struct, frozen=True):
    """A positive number to be fitted, with the start of the search and its limits."""

    name: str
    start: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0 < self.least < self.most:
            raise CalibrationError(f"{self.name} needs limits 0 < least < most, got {self.least} and {self.most}")


class Residuals(Struct, frozen=True):
    """Errors of predictions: the distribution of |relative error| over some samples, and the signed mean.

    ``sigma``: the root mean square of log(measured/predicted), weighted by measured seconds, since long calls make up a
        step.
    """

    num_points: int
    mean: float
    p50: float
    p90: float
    bias: float
    sigma: float

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> "Residuals":
        """Return the distribution of predicted/measured - 1; all zero without a sample."""
        if not len(measured):
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ratios = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float)
        errors, sigma = ratios - 1.0, float(np.sqrt(np.average(np.log(ratios) ** 2, weights=measured)))
        size = np.abs(errors)
        p50, p90 = np.percentile(size, [50, 90])
        return cls(len(size), float(size.mean()), float(p50), float(p90), float(errors.mean()), sigma)


Predict = Callable[[Mapping[str, float]], Sequence[float] | NDArray[np.float64]]


def fit(
    parameters: Sequence[Parameter],
    predict: Predict,
    seconds: Sequence[float] | NDArray[np.float64],
    *,
    num_evaluations: int = 60,
    outlier: float = _OUTLIER,
    by_length: bool = False,
    weights: Sequence[float] | NDArray[np.float64] | None = None,
) -> dict[str, Estimate]:
    """Return the parameters that bring ``predict`` closest to the measured seconds, with their standard errors.

    Minimises the sum of soft-l1 losses of log(predicted/measured) over the logarithms of the parameters, within their
    limits (trust region reflective).
    ``by_length``: a sample's weight is the root of its seconds, between equal weights and weights by share of a step.
        Seconds count up to ten times what the start of the search predicts: a call during which the machine stood still
        weighs no more than its work.
    ``weights``: factors of the samples' residuals.

    Raises CalibrationError for fewer samples than parameters, and for seconds that are not positive.
    """
    if len(seconds) < len(parameters):
        names = ", ".join(p.name for p in parameters)
        raise CalibrationError(f"{len(seconds)} measurements cannot settle {len(parameters)} parameters ({names})")
    if min(seconds) <= 0:
        raise CalibrationError(f"a measured time must be more than 0 s, got {min(seconds)}")
    logs = np.log(np.asarray(seconds, dtype=float))
    low, high = (np.log([getattr(p, side) for p in parameters]) for side in ("least", "most"))
    start = np.log([min(max(p.start, p.least), p.most) for p in parameters])
    inside = 1e-3 * (high - low)
    scales = np.ones_like(logs) if weights is None else np.asarray(weights, dtype=float)

    def predicted_logs(x: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds = np.asarray(predict(_named(parameters, x)), dtype=float)
        found: NDArray[np.float64] = np.log(np.maximum(seconds, 1e-15))
        return found

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        weighted: NDArray[np.float64] = scales * (predicted_logs(x) - logs)
        return weighted

    if by_length:
        lengths = np.minimum(logs, predicted_logs(start) + log(_STALL))
        scales = scales * np.exp(0.25 * (lengths - lengths.max()))

    found = least_squares(
        residuals, np.clip(start, low + inside, high - inside), bounds=(low, high), loss="soft_l1", f_scale=outlier,
        diff_step=1e-3, max_nfev=num_evaluations,
    )  # fmt: skip
    ours = estimates(residuals, found.x, low, high, outlier)
    return {p.name: estimate for p, estimate in zip(parameters, ours, strict=True)}


def values_of(found: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the fitted values without their errors."""
    return {name: estimate.value for name, estimate in found.items()}


def _named(parameters: Sequence[Parameter], logs: NDArray[np.float64]) -> dict[str, float]:
    return {p.name: float(np.exp(value)) for p, value in zip(parameters, logs, strict=True)}
