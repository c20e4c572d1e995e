"""Drift of ranks' clocks against each other, if the ends of common collectives prove it.

The quartz clocks of two hosts differ by some ten parts per million, and a clock that is being set by up to 500 (the
maximum of Linux). Then the differences between the ends of two ranks' collectives grow, on a line over time. The slope
of the line is the median slope between any two of them (Theil 1950; Sen 1968, with his confidence interval), so a
quarter of the ends may be wrong. A line counts under three conditions: its slope is certainly not 0; it leaves less
than half of the residual of a constant difference; and it does not make more collectives end on one rank before they
begin on the other.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from traces.kineto.ends import Ends, Indices, spread
from traces.timeline import Floats

MAX_DRIFT: Final = 1e-3
"""Largest possible drift: ten times that of two hosts' quartz clocks, and twice a clock's slewing."""
RESOLUTION_S: Final = 1e-6
"""Older profilers round to this."""
_STOPPED: Final = 1e-6 - 1
"""Relative speed of a clock that hardly runs, or runs backwards: the least with a usable logarithm."""
_QUANTILE: Final = 2.5758
"""Quantile of the normal distribution: a slope of 0 is mistaken for another once in 100 times."""
_LEAST_FOR_A_LINE: Final = 8
_MOST_FOR_A_LINE: Final = 256
"""Largest number of points of a line; more ends are combined to medians, as the slopes grow with the square."""


class Drift(Struct, frozen=True):
    """Drift of each rank's clock relative to the median clock, as a fraction; ``known`` is to be removed.

    ``impossible``: beyond MAX_DRIFT, so no property of a clock: its times have another unit, or are damaged.
    """

    known: Floats
    impossible: Floats


class Line(Struct, frozen=True):
    """``slope``, between ``low`` and ``high`` with 99 % confidence, and the value at 0."""

    slope: float
    low: float
    high: float
    at_zero: float


def find_drift(ends: Ends, num_ranks: int) -> Drift:
    """Return the drift of every rank; 0 for ranks that share too few collectives with others."""
    steps = {pair: float(np.log1p(max(_STOPPED, _relative_drift(ends, *rows)))) for pair, rows in ends.pairs()}
    logarithms, source = spread(steps, np.zeros(num_ranks))
    drift = np.zeros(num_ranks)
    for start in np.unique(source).tolist():
        together = source == start
        speeds = np.exp(logarithms[together])
        drift[together] = speeds / np.median(speeds) - 1
    possible = np.abs(drift) <= MAX_DRIFT
    return Drift(np.where(possible, drift, 0.0), np.where(possible, 0.0, drift))


def theil_sen(x: Floats, y: Floats) -> Line:
    """Return the line through points of which a quarter may be outliers; at least two have different x."""
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slopes = np.sort((y[second] - y[first])[run != 0] / run[run != 0])
    count, middle = len(x), float(np.median(slopes))
    half_width = _QUANTILE * np.sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2
    low, high = round(len(slopes) / 2 - half_width) - 1, round(len(slopes) / 2 + half_width)
    bounds = slopes[max(0, low)], slopes[min(len(slopes) - 1, high)]
    return Line(middle, float(bounds[0]), float(bounds[1]), float(np.median(y - middle * x)))


def _relative_drift(ends: Ends, one: Indices, other: Indices) -> float:
    """Return how much faster the other's clock runs, 0 if a constant difference explains the times as well."""
    time_s, apart_s = _thinned(ends.end_s[one], ends.end_s[other] - ends.end_s[one])
    if len(time_s) < _LEAST_FOR_A_LINE or not np.ptp(time_s):
        return 0.0
    line, constant_s = theil_sen(time_s, apart_s), float(np.median(apart_s))
    if line.low <= 0.0 <= line.high:
        return 0.0
    without_s = float(np.median(np.abs(apart_s - constant_s)))
    within_s = float(np.median(np.abs(apart_s - line.slope * time_s - line.at_zero)))
    if without_s - within_s <= max(within_s, RESOLUTION_S / 2):
        return 0.0
    constant = Line(0.0, 0.0, 0.0, constant_s)
    violated = _num_early(ends, one, other, line) > _num_early(ends, one, other, constant)
    return 0.0 if violated else line.slope


def _thinned(time_s: Floats, apart_s: Floats) -> tuple[Floats, Floats]:
    """Return points by time, those of large numbers as medians of consecutive ones."""
    order = np.argsort(time_s, kind="stable")
    time_s, apart_s = time_s[order], apart_s[order]
    if len(time_s) <= _MOST_FOR_A_LINE:
        return time_s, apart_s
    pieces = zip(np.array_split(time_s, _MOST_FOR_A_LINE), np.array_split(apart_s, _MOST_FOR_A_LINE), strict=True)
    medians = np.array([(np.median(times_s), np.median(distances_s)) for times_s, distances_s in pieces])
    return medians[:, 0], medians[:, 1]


def _num_early(ends: Ends, one: Indices, other: Indices, line: Line) -> int:
    """Return the number of collectives that end on one of two ranks before they have begun on the other."""
    start_s, end_s = ((times_s[other] - line.at_zero) / (1 + line.slope) for times_s in (ends.start_s, ends.end_s))
    early_s = np.maximum(ends.start_s[one] - end_s, start_s - ends.end_s[one])
    return int(np.count_nonzero(early_s > RESOLUTION_S))
