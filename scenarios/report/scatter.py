"""One timeline's seconds over the other's, a point per aligned op: a drawing in SVG that needs no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

from costmodels.units import format_time

BAND: Final = 0.2
"""The part that a point may be off to lie in the band."""
_WIDTH: Final = 720
_HEIGHT: Final = 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 30, 10, 48


@dataclass(frozen=True, slots=True)
class Point:
    """An op, or a group of ops of one name: seconds of each side, both positive."""

    words: str
    colour: str
    first_s: float
    second_s: float


def scatter(points: Sequence[Point], names: tuple[str, str]) -> str:
    """Return the drawing, both axes logarithmic: the second's seconds to the right, the first's upwards."""
    values = [value for point in points for value in (point.first_s, point.second_s)]
    decades = floor(log10(min(values)) - 0.05), ceil(log10(max(values)) + 0.05)
    scale = _Scale(*decades)
    parts = [
        f'<svg class="scatter" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(names[0])} against {escape(names[1])}, op by op">',
        scale.band(1 - BAND, 1 + BAND),
        *(scale.ticks(decade) for decade in range(decades[0], decades[1] + 1)),
        scale.diagonal(),
    ]
    for point in points:
        title = (
            f"{point.words}\n{names[0]} {format_time(point.first_s)}, {names[1]} {format_time(point.second_s)}, "
            f"{100 * (point.first_s / point.second_s - 1):+.1f} %"
        )
        parts.append(
            f'<circle cx="{scale.x(point.second_s):.1f}" cy="{scale.y(point.first_s):.1f}" r="4" '
            f'fill="{point.colour}"><title>{escape(title)}</title></circle>'
        )
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text x="{middle_x}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(names[1])}</text>')
    parts.append(
        f'<text x="14" y="{middle_y}" text-anchor="middle" transform="rotate(-90 14 {middle_y})">'
        f"{escape(names[0])}</text>"
    )
    return "".join([*parts, "</svg>"])


def in_band(points: Sequence[Point]) -> int:
    """Return how many points lie in the band."""
    return sum(abs(point.first_s / point.second_s - 1) <= BAND for point in points)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From seconds to places, over decades."""

    first: int
    last: int

    def x(self, seconds: float) -> float:
        return _LEFT + (log10(seconds) - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, seconds: float) -> float:
        share = (log10(seconds) - self.first) / (self.last - self.first)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self, decade: int) -> str:
        """Return the lines and words of a power of ten."""
        at_x, at_y, words = self.x(10.0**decade), self.y(10.0**decade), format_time(10.0**decade)
        return (
            f'<path d="M{at_x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}M{_LEFT} {at_y:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{at_x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{words}</text>'
            f'<text x="{_LEFT - 8}" y="{at_y + 4:.1f}" text-anchor="end">{words}</text>'
        )

    def diagonal(self) -> str:
        """Return the line of equality."""
        low, high = 10.0**self.first, 10.0**self.last
        corners = self.x(low), self.y(low), self.x(high), self.y(high)
        return '<path class="equal" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>'.format(*corners)

    def band(self, lower: float, upper: float) -> str:
        """Return the area between two ratios of first to second, within the axes."""
        low, high = 10.0**self.first, 10.0**self.last
        corners = [(low, low), (low, low * upper), (high / upper, high), (high, high), (high, high * lower)]
        corners.append((low / lower, low))
        places = " ".join(f"{self.x(second):.1f},{self.y(first):.1f}" for second, first in corners)
        return f'<polygon class="band" points="{places}"/>'
