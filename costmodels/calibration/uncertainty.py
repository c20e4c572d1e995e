"""Standard errors of fitted parameters, or the reasons for having none."""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STEP: Final = 1e-3
"""Step of finite differences, in a parameter's logarithm, to either side."""
_AT_LIMIT: Final = 2e-3
"""A parameter counts as at its limit within this fraction of the range, since the search never quite arrives."""
_FLAT: Final = 1e-9
"""Directions with less than this fraction of the largest curvature are flat, within the accuracy of derivatives."""
_TOUCHED: Final = 0.05
"""A parameter with a larger share in a flat direction is undetermined."""
_LOOSE: Final = 0.25
"""Largest meaningful standard error, as a fraction of the range between limits."""
_LEAST_LEFT: Final = 1e-3
"""Smallest remaining fraction of a residual that a fit follows; it avoids a division by zero."""


class Estimate(Struct, frozen=True):
    """A fitted positive number.

    ``standard_error``: of its logarithm, so about relative; None for a number that is ``at_limit`` or undetermined.
    """

    value: float
    standard_error: float | None = None
    at_limit: bool = False


def estimates(
    residuals: Callable[[Array], Array], logs: Array, low: Array, high: Array, outlier: float
) -> list[Estimate]:
    """Return the parameters of a fit with their standard errors.

    ``residuals``: of the logarithms of all parameters.
    ``logs``: the fitted logarithms, between the limits ``low`` and ``high``.
    ``outlier``: the scale of the soft-l1 loss of the fit. Parameters at a limit count as known for the errors of the
        others.
    """
    distances, width = residuals(logs), high - low
    at_limit = np.minimum(logs - low, high - logs) <= _AT_LIMIT * width
    free = np.flatnonzero(~at_limit)
    errors = np.full(len(logs), np.nan)
    if len(distances) > len(free) > 0:
        slopes = [_slope(residuals, logs, place, (low[place], high[place])) for place in free.tolist()]
        errors[free] = standard_errors(np.column_stack(slopes), distances, outlier)
    is_settled = errors < _LOOSE * width
    return [
        Estimate(float(np.exp(log)), float(error) if settled else None, bool(limit))
        for log, error, settled, limit in zip(logs, errors, is_settled, at_limit, strict=True)
    ]


def standard_errors(slopes: Array, residuals: Array, outlier: float) -> Array:
    """Return the standard error of every parameter; NaN where no residual depends on it, alone or with others.

    ``slopes``: derivative of each residual (row) by each parameter. The estimate is Huber's sandwich (1967) for the
        soft-l1 loss with the scale ``outlier``. Residuals may differ in size; they are assumed independent, and the
        model correct. Each residual is enlarged to its value without its own pull on the fit (MacKinnon and White 1985,
        HC3), which keeps the errors of few measurements from being too small.
    """
    spread = 1.0 + (residuals / outlier) ** 2
    bent = slopes * (spread**-0.75)[:, None]
    bend, directions = np.linalg.eigh(bent.T @ bent)
    is_flat = bend <= _FLAT * bend[-1]
    inverse = (directions[:, ~is_flat] / bend[~is_flat]) @ directions[:, ~is_flat].T
    own_pull = np.einsum("ij,jk,ik->i", bent, inverse, bent)
    pulls = slopes * (residuals * spread**-0.5 / np.maximum(1.0 - own_pull, _LEAST_LEFT))[:, None]
    variances = np.diag(inverse @ (pulls.T @ pulls) @ inverse)
    is_settled = (np.abs(directions[:, is_flat]) < _TOUCHED).all(axis=1)
    found: Array = np.where(is_settled, np.sqrt(np.maximum(variances, 0.0)), np.nan)
    return found


def _slope(residuals: Callable[[Array], Array], logs: Array, place: int, limits: tuple[float, float]) -> Array:
    """Return the derivative of all residuals over one logarithm, from values within its limits."""
    sides = []
    for step in (-_STEP, _STEP):
        moved = logs.copy()
        moved[place] = min(max(logs[place] + step, limits[0]), limits[1])
        sides.append((moved[place], residuals(moved)))
    (before, less), (after, more) = sides
    slope: Array = (more - less) / (after - before)
    return slope
