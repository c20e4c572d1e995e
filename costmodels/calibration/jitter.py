"""Random differences between devices of one type."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, variance

import numpy as np


def device_jitter(rounds: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return, by family, the standard deviation of log(time) over devices that do the same work at the same time.

    ``rounds``: seconds of every device on each family's kernels in one step. A slowdown common to all devices of a
        round does not count. Families that two or more devices never ran together are left out.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for families in rounds:
        for family, seconds in families.items():
            if len(seconds) > 1:
                found[family].append(variance(np.log(seconds).tolist()))
    return {family: sqrt(fmean(variances)) for family, variances in found.items()}
