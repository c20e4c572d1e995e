"""How unevenly a routing loads experts, and the ranks that share them out."""

import numpy as np
from numpy.typing import NDArray

from sim.moe.routing import Counts


def max_over_mean(loads: Counts) -> NDArray[np.float64]:
    """Return the largest load over the mean one, [layer], of loads [layer, ...]: 1 where all are equal."""
    flat = loads.reshape(len(loads), -1)
    ratio: NDArray[np.float64] = flat.max(1) / flat.mean(1)
    return ratio


def shares(loads: Counts) -> NDArray[np.float64]:
    """Return each expert's part of all choices of a layer, [layer, expert]."""
    parts: NDArray[np.float64] = loads / loads.sum(1, keepdims=True)
    return parts
