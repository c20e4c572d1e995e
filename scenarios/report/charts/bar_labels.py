"""Numbers in the bars of a drawn pipeline: upright where they fit, turned where the bar is narrow."""

from typing import Final

FONT_POINTS: Final = 7
_INCHES_PER_DIGIT: Final = 0.062
_LINE_INCHES: Final = 0.08
"""Height of a line of digits: the narrowest bar with a turned number."""


def label_angle(label: str, width_inches: float, height_inches: float) -> int | None:
    """Return the angle in degrees at which a number fits into a bar: 0, or 90 (read upwards); None if neither fits."""
    length_inches = _INCHES_PER_DIGIT * (len(label) + 0.3)
    if not label:
        return None
    if length_inches < width_inches:
        return 0
    return 90 if width_inches > _LINE_INCHES and length_inches < height_inches else None
