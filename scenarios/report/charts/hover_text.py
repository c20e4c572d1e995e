"""Texts inside charts, in plotly's markup; only this file writes it.

plotly reads ``<b>`` in a text as bold type, so names from other people are escaped before they enter a chart.
"""

import html
from typing import Final

from scenarios.errors import printable

WHOLE_TEXT: Final = "%{hovertext}<extra></extra>"
"""A template that shows only the words of each mark."""


def chart_text(text: str) -> str:
    """Return text escaped for plotly: ``<b>`` is shown literally."""
    return html.escape(printable(text), quote=False)


def hover_text(strong: str, detail: str = "", *, before: str = "", after: str = "") -> str:
    """Return text for hovering: a line with a name in bold type, and below it a detail."""
    lead = f"{chart_text(before)}: " if before else ""
    below = f"<br>{chart_text(detail)}" if detail else ""
    return f"{lead}<b>{chart_text(strong)}</b>{chart_text(after)}{below}"


def hover_template(*lines: str, strong: str = "", beside_strong: str = "") -> str:
    """Return a template of lines with values of a mark (``%{y}``), below a name in bold type if there is one."""
    head = [f"<b>{strong}</b>{beside_strong}"] if strong else []
    return "<br>".join([*head, *lines]) + "<extra></extra>"
