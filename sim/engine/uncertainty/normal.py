"""Equally likely parts of a normal distribution, and quantiles of what was drawn."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from sim.engine.uncertainty.longest_path import Floats


def normal_quantiles(probabilities: Floats) -> Floats:
    """Return the quantiles of a standard normal distribution; probabilities are more than 0 and less than 1."""
    return np.array([NormalDist().inv_cdf(probability) for probability in probabilities.tolist()])


def even_probabilities(count: int) -> Floats:
    """Return the middles of so many equal parts of 0 to 1, in order."""
    middles: Floats = (np.arange(count) + 0.5) / count
    return middles


def quantiles(values: Floats, probabilities: Sequence[float]) -> Floats:
    """Return the quantiles of drawn values, each of which stands in the middle of its equal part of 0 to 1.

    As ``np.quantile`` has them by Hazen's rule, without ``numpy.ma``, which that imports.
    """
    return np.interp(probabilities, even_probabilities(len(values)), np.sort(values))
