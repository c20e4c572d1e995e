"""A scatter plot of one timeline's seconds over the other's, a point per aligned op."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from costmodels.units import format_change, format_time
from scenarios.report.charts.svg_plot import Drawing, Mark, Plot, log_axis

BAND: Final = 0.2
"""Half-width of the band, as a fraction."""
_SIZE: Final = (720, 460)
_BAND_CORNERS: Final = 65
_RING: Final = {"fill": "none", "stroke-width": "1.5", "pointer-events": "all"}


class Point(Struct, frozen=True):
    """An op, or a group of ops of one name (of one name per side if not ``by_name``).

    Seconds of both sides, positive.
    """

    words: str
    colour: str
    first_s: float
    second_s: float
    by_name: bool = True


def scatter(points: Sequence[Point], names: tuple[str, str]) -> Drawing:
    """Return the drawing with logarithmic axes: the second timeline's seconds to the right, the first's upwards."""
    values = [value for point in points for value in (point.first_s, point.second_s)]
    first, second = names
    plot = Plot(log_axis(second, values, format_time), log_axis(first, values, format_time), *_SIZE)
    ends = np.geomspace(plot.x.low, plot.x.high, _BAND_CORNERS)
    band = np.concatenate([ends, ends[::-1]]), np.concatenate([ends * (1 - BAND), ends[::-1] * (1 + BAND)])
    guide = plot.line(ends[[0, -1]], ends[[0, -1]], {"class": "guide"})
    marks: list[Mark] = [plot.area(*band, {"class": "band"}), guide]
    for point in points:
        times = f"{first} {format_time(point.first_s)}, {second} {format_time(point.second_s)}"
        words = f"{point.words}\n{times}, {format_change(point.first_s / point.second_s - 1)}"
        look = {"fill": point.colour, "opacity": "0.8"} if point.by_name else {**_RING, "stroke": point.colour}
        marks += plot.circles([(point.second_s, point.first_s, words)], look)
    return plot.drawing(marks, f"{first} against {second}, op by op")


def in_band(points: Sequence[Point]) -> int:
    """Return the number of points in the band."""
    return sum(abs(point.first_s / point.second_s - 1) <= BAND for point in points)
