"""When ranks are ready: one time for each, or one for all, as after an exchange in which all have met."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Instant = Floats | float


def latest_s(now_s: Instant) -> float:
    """Return when the last rank is ready."""
    return now_s if isinstance(now_s, float) else float(now_s.max())


def after(now_s: Instant, end_s: float) -> Instant:
    """Return when ranks go on that wait for what ends at a time: a common time where none is ready later."""
    if isinstance(now_s, float):
        return max(now_s, end_s)
    return end_s if now_s.max() <= end_s else np.maximum(now_s, end_s)
