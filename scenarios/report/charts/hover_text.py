"""Texts inside charts, in the markup that plotly knows: the one place where it is written.

plotly takes ``<b>`` in a text for bold type, so names of other people are escaped on their way into a chart.
"""

import html
from typing import Final

from scenarios.errors import printable

WHOLE_TEXT: Final = "%{hovertext}<extra></extra>"
"""A template that shows the words of each mark, and nothing else."""


def chart_text(text: str) -> str:
    """Return text as plotly shows it: ``<b>`` is shown, not obeyed."""
    return html.escape(printable(text), quote=False)


def hover_text(strong: str, detail: str = "", *, before: str = "", after: str = "") -> str:
    """Return words to be shown on pointing: a line with its name in bold type, and below it a detail."""
    lead = f"{chart_text(before)}: " if before else ""
    below = f"<br>{chart_text(detail)}" if detail else ""
    return f"{lead}<b>{chart_text(strong)}</b>{chart_text(after)}{below}"


def hover_template(*lines: str, strong: str = "", beside_strong: str = "") -> str:
    """Return a template of lines that name values of a mark (``%{y}``), under a name in bold type if there is one."""
    head = [f"<b>{strong}</b>{beside_strong}"] if strong else []
    return "<br>".join([*head, *lines]) + "<extra></extra>"
