"""Least squares on logarithms of times: a factor of two too long weighs as much as one too short."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.calibration.uncertainty import Estimate, estimates
from costmodels.errors import CostModelError

_OUTLIER: Final = 0.3
"""Residuals of the logarithm beyond this weigh less and less (soft l1): noise of a shared machine has a long tail."""


class CalibrationError(CostModelError):
    """Measurements that nothing can be fitted to."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A positive number to be fitted, where the search starts, and its limits."""

    name: str
    start: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0 < self.least < self.most:
            raise CalibrationError(f"{self.name} needs limits 0 < least < most, got {self.least} and {self.most}")


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far predictions lie from measurements: |relative error| over some samples, and its signed mean.

    ``sigma``: the root mean square of log(measured/predicted), weighted by measured seconds: long calls make up a step.
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
    """Return the parameters under which ``predict`` comes nearest to the measured seconds, with their standard errors.

    Minimises the sum of soft-l1 losses of log(predicted/measured) over the logarithms of the parameters, within their
    limits (trust region reflective). ``by_length``: a sample weighs as the root of its seconds, between alike and by
    what it adds to a step. ``weights``: of the samples, as factors of their distances. Raises CalibrationError with
    fewer samples than parameters, or for seconds that are not positive.
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
    if by_length:
        scales = scales * np.exp(0.25 * (logs - logs.max()))

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = predict(_named(parameters, x))
        distances = np.log(np.maximum(np.asarray(predicted, dtype=float), 1e-15)) - logs
        weighted: NDArray[np.float64] = scales * distances
        return weighted

    found = least_squares(
        residuals, np.clip(start, low + inside, high - inside), bounds=(low, high), loss="soft_l1", f_scale=outlier,
        diff_step=1e-3, max_nfev=num_evaluations,
    )  # fmt: skip
    ours = estimates(residuals, found.x, low, high, outlier)
    return {p.name: estimate for p, estimate in zip(parameters, ours, strict=True)}


def values_of(found: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the fitted numbers alone."""
    return {name: estimate.value for name, estimate in found.items()}


def _named(parameters: Sequence[Parameter], logs: NDArray[np.float64]) -> dict[str, float]:
    return {p.name: float(np.exp(value)) for p, value in zip(parameters, logs, strict=True)}
