"""Blocks in a notebook: the parts of a page, its charts as still pictures."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.report.blocks import Block
from scenarios.report.rendering.html_page import render, style_of_blocks
from scenarios.report.rendering.matplotlib_chart import chart_png
from scenarios.report.rendering.plotly_figure import plotly_chart
from scenarios.report.rendering.surfaces import every_block, shown_on


@dataclass(frozen=True, slots=True)
class Shown:
    """Blocks that a notebook shows where they are the last line of a cell::

    Shown(step_blocks(found))
    """

    blocks: Sequence[Block]

    def _repr_html_(self) -> str:
        return notebook_html(self.blocks)


def notebook_html(blocks: Sequence[Block]) -> str:
    """Return blocks as a part of a page that needs no script."""
    shown = list(shown_on("page", blocks))
    charts = [chart for block in every_block("page", shown) if (chart := plotly_chart(block)) is not None]
    pictures = {chart.id: b64encode(chart_png(chart)).decode() for chart in charts}
    return render("notebook.html", shown, style=style_of_blocks(), pictures=pictures)
