"""Plots in SVG that need no script: two axes, and dots, lines and areas between them. Thousands of dots stay small."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scenarios.report.rendering.markup import escape

Array = NDArray[np.float64]

_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 10, 46
_MOST_TICKS: Final = 6
_FEW_DECADES: Final = 2.2
"""An axis of fewer has ticks between the powers of ten."""
_MARGIN: Final = 1.25
_LEAST_TICKS: Final = 2
_DIGITS: Final = ((1,), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
"""Of ticks, coarse to fine; the last ones lie closer than any axis is short, twice the margin."""
_RASTER: Final = 2
"""Dots lie on a grid so wide, in the drawing's units: however many there are, no more are drawn than fit."""
_CROWDS: Final = ((1, 0.55), (3, 0.8), (8, 1.0))
"""Opacity of dots that stand for at least so many points."""
_TICK_GAP: Final = 18
_TITLE_GAP: Final = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic or linear axis from ``low`` to ``high``, with words at some ``ticks``."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    words: Callable[[float], str]
    is_log: bool = True

    def part(self, values: Sequence[float] | Array) -> Array:
        """Return where values lie, 0 at the low end and 1 at the high one; what is beyond lies on the edge."""
        inside = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        if self.is_log:
            found: Array = np.log(inside / self.low) / np.log(self.high / self.low)
            return found
        return (inside - self.low) / (self.high - self.low)


def log_axis(title: str, values: Sequence[float] | Array, words: Callable[[float], str]) -> Axis:
    """Return an axis that reaches a little beyond positive values, with ticks at round numbers."""
    low, high = float(np.min(values)) / _MARGIN, float(np.max(values)) * _MARGIN
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks: list[float] = []
    for digits in _DIGITS[log10(high / low) <= _FEW_DECADES :]:
        if len(ticks) < _LEAST_TICKS:
            found = (float(f"{digit}e{place}") for place in decades for digit in digits)
            ticks = [tick for tick in found if low <= tick <= high]
    return Axis(title, low, high, tuple(ticks[:: -(-len(ticks) // _MOST_TICKS)]), words)


@dataclass(frozen=True, slots=True)
class Plot:
    """The place of a plot's marks, in the units of its drawing."""

    x: Axis
    y: Axis
    width: int = 420
    height: int = 320

    def places(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array) -> tuple[Array, Array]:
        """Return where points lie in the drawing."""
        right, low = self.width - _RIGHT, self.height - _BOTTOM
        return _LEFT + self.x.part(xs) * (right - _LEFT), low - self.y.part(ys) * (low - _TOP)

    def dots(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: str) -> str:
        """Return a dot per place of a grid that some point falls on, the stronger the more do; ``look``: attributes."""
        raster = np.rint(np.column_stack(self.places(xs, ys)) / _RASTER).astype(int) * _RASTER
        found, counts = np.unique(raster, axis=0, return_counts=True)
        paths = []
        for (least, opacity), most in zip(_CROWDS, [*(crowd for crowd, _ in _CROWDS[1:]), np.inf], strict=True):
            marks = "".join(f"M{x} {y}h0" for x, y in found[(counts >= least) & (counts < most)].tolist())
            if marks:
                paths.append(f'<path class="dots" opacity="{opacity}" {look} d="{marks}"/>')
        return "".join(paths)

    def circles(self, points: Sequence[tuple[float, float, str]], look: str) -> str:
        """Return a circle per (x, y, words), which says its words where it is pointed at."""
        found = []
        for x, y, words in points:
            across, down = self.places([x], [y])
            title = f"<title>{escape(words)}</title>"
            found.append(f'<circle cx="{across[0]:.1f}" cy="{down[0]:.1f}" r="3.5" {look}>{title}</circle>')
        return "".join(found)

    def line(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: str) -> str:
        """Return a line through points."""
        return f'<path {look} d="M{self._corners(xs, ys)}"/>'

    def area(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array, look: str) -> str:
        """Return the area within a line through points."""
        return f'<path {look} d="M{self._corners(xs, ys)}Z"/>'

    def svg(self, marks: Sequence[str], label: str) -> str:
        """Return the drawing: axes, then marks in their order; ``label``: what it shows, for those who cannot see."""
        head = f'<svg class="plot" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
        return "".join([head, self._axes(), *marks, "</svg>"])

    def _corners(self, xs: Sequence[float] | Array, ys: Sequence[float] | Array) -> str:
        return "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(*self.places(xs, ys), strict=True))

    def _axes(self) -> str:
        low, right = self.height - _BOTTOM, self.width - _RIGHT
        across = self.places(self.x.ticks, [self.y.low] * len(self.x.ticks))[0]
        down = self.places([self.x.low] * len(self.y.ticks), self.y.ticks)[1]
        grid = "".join(f"M{x:.1f} {_TOP}V{low}" for x in across) + "".join(f"M{_LEFT} {y:.1f}H{right}" for y in down)
        words = [
            f'<text x="{x:.1f}" y="{low + _TICK_GAP}" text-anchor="middle">{escape(self.x.words(tick))}</text>'
            for x, tick in zip(across, self.x.ticks, strict=True)
        ]
        words += [
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(self.y.words(tick))}</text>'
            for y, tick in zip(down, self.y.ticks, strict=True)
        ]
        middle_x, middle_y = (_LEFT + right) / 2, (_TOP + low) / 2
        titles = (
            f'<text x="{middle_x}" y="{self.height - _TITLE_GAP}" text-anchor="middle">{escape(self.x.title)}</text>'
            f'<text x="12" y="{middle_y}" text-anchor="middle" transform="rotate(-90 12 {middle_y})">'
            f"{escape(self.y.title)}</text>"
        )
        return f'<path class="grid" d="{grid}"/>{"".join(words)}{titles}'


def panels(plots: Sequence[tuple[str, str]]) -> str:
    """Return drawings beside each other, as many as there is room for, from (heading, SVG)."""
    figures = "".join(f"<figure><figcaption>{escape(words)}</figcaption>{svg}</figure>" for words, svg in plots)
    return f'<div class="panels">{figures}</div>'
