"""Random numbers by name, equally likely parts of a normal distribution, and quantiles of what was drawn."""

from collections.abc import Sequence
from statistics import NormalDist
from zlib import crc32

import numpy as np

from sim.engine.uncertainty.longest_path import Floats


def generator(seed: int, name: object) -> "np.random.Generator":
    """Return the random generator of a name. Its draws do not depend on the generators of other names."""
    return np.random.Generator(np.random.PCG64([seed, crc32(repr(name).encode())]))


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
