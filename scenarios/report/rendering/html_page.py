"""Rendering of blocks as one self-contained HTML page, with plotly.js inside; it needs no network.

All HTML is in the templates. Their values are escaped, and control characters are shown as escapes, so ``<b>`` in a
name is shown literally. Only the style, the scripts and their data are inserted unescaped; they come from files of this
package, or are JSON that is safe inside a script.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from scenarios.errors import printable
from scenarios.report.blocks import (
    Bar,
    Bars,
    Block,
    Chart,
    Columns,
    Facts,
    Figure,
    Fold,
    Group,
    Headline,
    HeatMap,
    Lanes,
    LargePlot,
    Legend,
    Line,
    Lines,
    Panels,
    Piece,
    Section,
    SplitBar,
    Table,
    Text,
    Timeline,
)
from scenarios.report.charts.gantt import phase_legend
from scenarios.report.charts.svg_plot import Path as PlotPath
from scenarios.report.rendering.plotly_figure import plotly_chart
from scenarios.report.rendering.surfaces import every_block, shown_on
from traces.files import replacing

TEMPLATES: Final = Path(__file__).parents[1] / "templates"
TEMPLATE_OF: Final[Mapping[type, str]] = {
    Headline: "headline", Facts: "facts", Text: "text", Table: "table", SplitBar: "split_bar", Legend: "colours",
    Bars: "chart", Lines: "chart", HeatMap: "chart", Timeline: "chart", Chart: "chart", Panels: "panels",
    LargePlot: "large_plot", Lanes: "lanes", Section: "section", Group: "group", Columns: "columns", Fold: "fold",
}  # fmt: skip
"""The template of each block, in ``templates/blocks``."""

_IN_SCRIPTS: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})
"""Characters that could end a script, or begin a comment in it for a browser; in JSON they occur only in strings."""


def write_page(path: Path, blocks: Sequence[Block]) -> None:
    """Write blocks as a page; the first block is a headline. Identical blocks give identical bytes."""
    text = page_text(blocks)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def page_text(blocks: Sequence[Block]) -> str:
    """Return blocks as a page; the first block is a headline. The page has plotly.js if a block is a chart."""
    shown = list(shown_on("page", blocks))
    title = next(block.title for block in shown if isinstance(block, Headline))
    style = Markup(_file("page.css") + _file("blocks.css"))
    return render("page.html", shown, title=title, style=style, scripts=_scripts(shown))


def render(template: str, blocks: Sequence[Block], **values: object) -> str:
    """Return a template of ``templates``, filled with blocks and other values."""
    return _environment().get_template(template).render(blocks=blocks, **values)


def style_of_blocks() -> Markup:
    """Return the style of blocks, for use outside a page of their own."""
    return Markup(_file("blocks.css"))


def script_json(value: Any) -> str:
    """Return plain values as JSON that is safe inside ``script``. Raises ValueError for numbers that JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPTS)


def _scripts(shown: Sequence[Block]) -> list[Markup]:
    """Return the scripts that draw charts and lanes, none if there are none: plotly.js is most of a page."""
    found = list(every_block("page", shown))
    figures: dict[str, Figure] = {c.id: c.figure for block in found if (c := plotly_chart(block)) is not None}
    scripts = []
    if figures:
        scripts += [get_plotlyjs(), f"const charts = {script_json(figures)};\n\n{_file('charts.js')}"]
    if any(isinstance(block, Lanes) for block in found):
        scripts.append(_file("op_lanes.js"))
    return [Markup(script) for script in scripts]


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the template engine, which escapes all values. It compiles each template once for all pages."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_finalized,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["template_of"] = lambda block: f"blocks/{TEMPLATE_OF[type(block)]}.html"
    environment.filters |= {
        "pieces": _pieces,
        "on_page": lambda blocks: list(shown_on("page", blocks)),
        "legend_of": _legend_of,
        "height_of": lambda block: getattr(plotly_chart(block), "height", None),
    }
    environment.tests |= {"bar": lambda cell: isinstance(cell, Bar), "path": lambda mark: isinstance(mark, PlotPath)}
    return environment


def _finalized(value: object) -> object:
    """Return text with its control characters as escapes."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _pieces(line: Line) -> list[Piece]:
    parts = (line,) if isinstance(line, str) else line
    return [Piece(part) if isinstance(part, str) else part for part in parts]


def _legend_of(block: Block) -> list[tuple[str, str]]:
    """Return words and colours of a chart whose legend is above it."""
    match block:
        case Bars():
            return [(series.words, series.colour) for series in block.series]
        case Timeline():
            return phase_legend(block.gantt)
    return []
