"""Plots without scripts: two axes, and dots, lines and areas between them. Thousands of dots take little space.

A plot gives its marks as data of SVG shapes; ``templates`` holds their markup.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 10, 46
_MOST_TICKS: Final = 6
_FEW_DECADES: Final = 2.2
"""Decades below which an axis also has ticks between the powers of ten."""
_MARGIN: Final = 1.25
_LEAST_TICKS: Final = 2
_DIGITS: Final = ((1,), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
"""Digits of ticks, coarse to fine; neighbours of the finest are closer than twice the margin of the shortest axis."""
_RASTER: Final = 2
"""Grid spacing of dots in the drawing's units, which limits the number of dots."""
_CROWDS: Final = ((1, 0.55), (3, 0.8), (8, 1.0))
"""Opacity of a dot by the least number of points it stands for."""
_TICK_GAP: Final = 18
_TITLE_GAP: Final = 8


class Axis(Struct, frozen=True):
    """A logarithmic or linear axis from ``low`` to ``high``, with labels at some ``ticks``."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    words: Callable[[float], str]
    is_log: bool = True

    def part(self, values: Sequence[float] | Array) -> Array:
        """Return the positions of values, 0 at the low end and 1 at the high end; values beyond are on the edge."""
        inside = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        if self.is_log:
            found: Array = np.log(inside / self.low) / np.log(self.high / self.low)
            return found
        return (inside - self.low) / (self.high - self.low)


def log_axis(title: str, values: Sequence[float] | Array, words: Callable[[float], str]) -> Axis:
    """Return an axis a little longer than the range of positive values, with ticks at round numbers."""
    low, high = float(np.min(values)) / _MARGIN, float(np.max(values)) * _MARGIN
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks: list[float] = []
    for digits in _DIGITS[log10(high / low) <= _FEW_DECADES :]:
        if len(ticks) < _LEAST_TICKS:
            found = (float(f"{digit}e{place}") for place in decades for digit in digits)
            ticks = [tick for tick in found if low <= tick <= high]
    return Axis(title, low, high, tuple(ticks[:: -(-len(ticks) // _MOST_TICKS)]), words)


Look = Mapping[str, str]
"""Attributes of a shape: its class on the page, or explicit colours."""


class Path(Struct, frozen=True):
    """A line, an area, or dots, as SVG path data."""

    data: str
    look: Look


class Circle(Struct, frozen=True):
    """A circle that shows its words on hover."""

    x: str
    y: str
    words: str
    look: Look


class Words(Struct, frozen=True):
    """A label of an axis. ``anchor``: the part of the text at the given place."""

    x: str
    y: str
    text: str
    anchor: str
    is_upright: bool = False


Mark = Path | Circle


class Drawing(Struct, frozen=True):
    """A complete plot. ``label``: a description for readers who cannot see it."""

    label: str
    width: int
    height: int
    grid: str
    words: tuple[Words, ...]
    marks: tuple[Mark, ...]


class Plot(Struct, frozen=True):
    """The area of a plot's marks, in the units of its drawing."""

    x: Axis
    y: Axis
    width: int = 420
    height: int = 320

    def places(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array) -> tuple[Array, Array]:
        """Return the positions of points in the drawing."""
        right, low = self.width - _RIGHT, self.height - _BOTTOM
        return _LEFT + self.x.part(xs) * (right - _LEFT), low - self.y.part(ys) * (low - _TOP)

    def dots(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: Look) -> list[Mark]:
        """Return a dot per grid place with points, the more opaque the more points it has."""
        raster = np.rint(np.column_stack(self.places(xs, ys)) / _RASTER).astype(int) * _RASTER
        found, counts = np.unique(raster, axis=0, return_counts=True)
        paths: list[Mark] = []
        for (least, opacity), most in zip(_CROWDS, [*(crowd for crowd, _ in _CROWDS[1:]), np.inf], strict=True):
            marks = "".join(f"M{x} {y}h0" for x, y in found[(counts >= least) & (counts < most)].tolist())
            if marks:
                paths.append(Path(marks, {"class": "dots", "opacity": str(opacity), **look}))
        return paths

    def circles(self, points: Sequence[tuple[float, float, str]], look: Look) -> list[Mark]:
        """Return a circle per (x, y, words)."""
        found: list[Mark] = []
        for x, y, words in points:
            across, down = self.places([x], [y])
            found.append(Circle(f"{across[0]:.1f}", f"{down[0]:.1f}", words, look))
        return found

    def line(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: Look) -> Path:
        """Return a line through points."""
        return Path(f"M{self._corners(xs, ys)}", look)

    def area(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: Look) -> Path:
        """Return the area within a line through points."""
        return Path(f"M{self._corners(xs, ys)}Z", look)

    def drawing(self, marks: Sequence[Mark], label: str) -> Drawing:
        """Return the drawing: axes, then marks in their order."""
        low, right = self.height - _BOTTOM, self.width - _RIGHT
        across = self.places(self.x.ticks, [self.y.low] * len(self.x.ticks))[0]
        down = self.places([self.x.low] * len(self.y.ticks), self.y.ticks)[1]
        grid = "".join(f"M{x:.1f} {_TOP}V{low}" for x in across) + "".join(f"M{_LEFT} {y:.1f}H{right}" for y in down)
        words = [
            Words(f"{x:.1f}", f"{low + _TICK_GAP}", self.x.words(tick), "middle")
            for x, tick in zip(across, self.x.ticks, strict=True)
        ]
        words += [
            Words(f"{_LEFT - 8}", f"{y + 4:.1f}", self.y.words(tick), "end")
            for y, tick in zip(down, self.y.ticks, strict=True)
        ]
        middle_x, middle_y = (_LEFT + right) / 2, (_TOP + low) / 2
        words.append(Words(f"{middle_x}", f"{self.height - _TITLE_GAP}", self.x.title, "middle"))
        words.append(Words("12", f"{middle_y}", self.y.title, "middle", is_upright=True))
        return Drawing(label, self.width, self.height, grid, tuple(words), tuple(marks))

    def _corners(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array) -> str:
        return "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(*self.places(xs, ys), strict=True))
