"""Blocks in a notebook: the parts of a page, with charts as still pictures.

matplotlib is imported when a notebook shows the first chart, since simulating must not need it.
"""

from base64 import b64encode
from collections.abc import Sequence
from importlib import import_module

from scenarios.report.blocks import Block, Chart
from scenarios.report.rendering.html_page import render, style_of_blocks
from scenarios.report.rendering.plotly_figure import plotly_chart
from scenarios.report.rendering.surfaces import every_block, shown_on


def notebook_html(blocks: Sequence[Block]) -> str:
    """Return blocks as a part of a page without scripts."""
    shown = list(shown_on("page", blocks))
    charts = [chart for block in every_block("page", shown) if (chart := plotly_chart(block)) is not None]
    return render("notebook.html", shown, style=style_of_blocks(), pictures=_pictures(charts) if charts else {})


def _pictures(charts: Sequence[Chart]) -> dict[str, str]:
    """Return each chart as a PNG in base64, by its id."""
    drawing = import_module("scenarios.report.rendering.matplotlib_chart")
    return {chart.id: b64encode(drawing.chart_png(chart)).decode() for chart in charts}
