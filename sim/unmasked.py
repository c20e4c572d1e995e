"""Distinct values and quantiles of arrays, without numpy's masked arrays.

``np.unique`` and ``np.quantile`` import ``numpy.ma`` to learn whether what they are given is masked, which takes longer
than all that a small simulation does with them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def unique(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values of an array, sorted, as ``np.unique`` does."""
    return np.unique(values, return_counts=True)[0]


def quantiles(values: npt.NDArray[np.float64], fractions: Sequence[float]) -> tuple[float, ...]:
    """Return quantiles between the middles of steps: to the last bit those of ``np.quantile(..., method="hazen")``.

    ``values``: at least one. Source: Hyndman and Fan 1996, Sample Quantiles in Statistical Packages, definition 5.
    """
    ordered, last = np.sort(values).tolist(), len(values) - 1
    return tuple(_between(ordered, min(max(len(values) * fraction + 0.5 - 1.0, 0.0), last)) for fraction in fractions)


def _between(ordered: Sequence[float], place: float) -> float:
    """Return the value at a place between two values, reckoned from the nearer one as numpy does."""
    below = int(place)
    low, high, beyond = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * beyond if beyond < 0.5 else high - (high - low) * (1.0 - beyond)
