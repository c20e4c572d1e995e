"""Units and rounded numbers for the axes of charts."""

from typing import Any, Final

import numpy as np

SMALLEST_PEAK: Final = 0.15
"""Peaks of memory below this fraction of a device's are drawn without it."""
_TIME_UNITS: Final = (("h", 3600.0), ("s", 1.0), ("ms", 1e-3))
_MEMORY_UNITS: Final = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))


def time_unit(duration_s: float) -> tuple[str, float]:
    """Return the unit for an axis up to ``duration_s``, and the unit's seconds."""
    for unit, factor in _TIME_UNITS:
        if duration_s >= 2 * factor:
            return unit, factor
    return "us", 1e-6


def memory_unit(num_bytes: float) -> tuple[str, float]:
    """Return the unit for an axis up to ``num_bytes``, and the unit's bytes."""
    for unit, factor in _MEMORY_UNITS:
        if num_bytes >= factor:
            return unit, factor
    return "bytes", 1.0


def drawn_number(value: float, digits: int = 9) -> float:
    """Return a number rounded to a few significant digits, enough for a drawing, to save bytes."""
    return float(f"{value:.{digits}g}")


def drawn_numbers(values: Any) -> list[float]:
    """Return numbers with nine significant digits."""
    return [drawn_number(value) for value in np.asarray(values).tolist()]
