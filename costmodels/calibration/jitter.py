"""How much devices of one type differ at random."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, variance

import numpy as np


def device_jitter(rounds: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return by family the standard deviation of the logarithm of devices' times for the same work at the same time.

    ``rounds``: seconds that every device spent on each family's kernels in one step. What slows all of them in a
    round counts for nothing; a family that two devices or more have never run together is left out.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for families in rounds:
        for family, seconds in families.items():
            if len(seconds) > 1:
                found[family].append(variance(np.log(seconds).tolist()))
    return {family: sqrt(fmean(variances)) for family, variances in found.items()}
