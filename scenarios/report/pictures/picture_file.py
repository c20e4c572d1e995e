"""Drawings in one picture file, one below the other: SVG, PNG or PDF by the ending of the file name."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from scenarios.errors import printable
from traces.files import replacing

SUFFIXES: Final = (".svg", ".png", ".pdf")


class Drawing(Protocol):
    """A drawing of a certain size on a matplotlib figure."""

    @property
    def size_inches(self) -> tuple[float, float]:
        """Return width and height."""

    def draw(self, figure: Any) -> None:
        """Draw on a matplotlib figure or subfigure."""


def write_picture(drawings: Sequence[Drawing], path: Path) -> None:
    """Write the picture. Identical drawings give identical bytes. Raises OSError if the file cannot be written."""
    widths, heights = zip(*(drawing.size_inches for drawing in drawings), strict=True)
    with rc_context({"svg.hashsalt": "meshtwin", "svg.fonttype": "none"}):
        figure = Figure(figsize=(max(widths), sum(heights)), dpi=110, layout="constrained")
        for drawing, part in zip(drawings, _parts(figure, widths, heights), strict=True):
            drawing.draw(part)
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {"Software": None})
        for text in figure.findobj(Text):
            text.set_parse_math(False)  # a dollar sign in a name is no mathematics
            text.set_text(printable(text.get_text()))
        with replacing(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # characters missing in the font are drawn as boxes
            figure.savefig(temporary, format=path.suffix.lower()[1:], metadata=dated)


def _parts(figure: Any, widths: Sequence[float], heights: Sequence[float]) -> list[Any]:
    """Return a part of the figure per drawing: one below the other, each of its own width."""
    if len(widths) == 1:
        return [figure]
    parts = []
    for row, width in zip(figure.subfigures(len(widths), 1, height_ratios=heights), widths, strict=True):
        rest = max(widths) - width
        parts.append(row.subfigures(1, 2, width_ratios=(width, rest))[0] if rest else row)
    return parts
