"""A chart of thumbnails: titled pictures of pipelines in two columns, all on one axis of time."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scenarios.report.blocks import Chart
from scenarios.report.charts.axis_unit import time_unit
from scenarios.report.charts.gantt import COMMUNICATION_LANE, MAIN_LANE
from scenarios.report.charts.hover_text import chart_text
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.report.phases import PHASES

Columns = NDArray[np.floating[Any]]

_PALER: Final = 0.62
_GAP: Final = 0.04


def thumbnails_chart(chart_id: str, pictures: Sequence[tuple[str, Thumbnail]], end_s: float) -> Chart:
    """Return titled pictures in two columns; time goes from 0 to ``end_s`` in each."""
    columns = 2 if len(pictures) > 1 else 1
    num_rows, width = -(-len(pictures) // columns), (1.0 - _GAP * (columns - 1)) / columns
    unit, factor = time_unit(end_s)
    height = 64 * num_rows + num_rows * max(70, 15 * max(picture.num_lanes for _, picture in pictures))
    layout: dict[str, Any] = {
        "showlegend": False, "hovermode": False, "dragmode": "zoom", "annotations": [],
        "margin": {"l": 16, "r": 16, "t": 24, "b": 30},
    }  # fmt: skip
    data: list[dict[str, Any]] = []
    for index, (title, picture) in enumerate(pictures):
        suffix = str(index + 1) if index else ""
        row, column = divmod(index, columns)
        left = column * (width + _GAP)
        right = left + width
        top = 1.0 - row / num_rows
        bottom = 1.0 - (row + 1) / num_rows + 48 / height
        layout[f"xaxis{suffix}"] = {
            "domain": [round(left, 6), round(right, 6)], "anchor": f"y{suffix}", "zeroline": False, "showgrid": False,
            "range": [0, _short(end_s / factor)], "ticksuffix": f" {unit}", "nticks": 6,
        }  # fmt: skip
        layout[f"yaxis{suffix}"] = {
            "domain": [round(bottom, 6), round(top, 6)], "anchor": f"x{suffix}", "zeroline": False, "showgrid": False,
            "range": [picture.num_lanes - 0.45, -0.55], "showticklabels": False, "fixedrange": True,
        }  # fmt: skip
        layout["annotations"].append({
            "text": chart_text(title), "x": round(left, 6), "y": round(top, 6), "xref": "paper", "yref": "paper",
            "xanchor": "left", "yanchor": "bottom", "showarrow": False,
        })  # fmt: skip
        data += _traces(picture, suffix, factor, end_s)
    return Chart(chart_id, {"data": data, "layout": layout}, height)


def thumbnails_legend(pictures: Sequence[Thumbnail]) -> list[tuple[str, str]]:
    """Return words and colours of the phases in the pictures."""
    present = {code for picture in pictures for code in np.unique(picture.phase).tolist()}
    return [(phase.words, phase.colour) for index, phase in enumerate(PHASES) if index in present]


def _traces(picture: Thumbnail, suffix: str, factor: float, end_s: float) -> list[dict[str, Any]]:
    """Return one polygon trace per phase and shade."""
    traces = []
    for index, phase in enumerate(PHASES):
        for paler in (0, 1):
            rows = np.flatnonzero((picture.phase == index) & (picture.is_paler == paler) & (picture.start_s < end_s))
            if not len(rows):
                continue
            offset, thickness = COMMUNICATION_LANE if phase.is_communication else MAIN_LANE
            middle = picture.lane[rows] + offset
            x, y = _outlines(
                picture.start_s[rows] / factor, picture.end_s[rows] / factor,
                middle - thickness / 2, middle + thickness / 2,
            )  # fmt: skip
            traces.append({
                "type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": phase.colour,
                "opacity": _PALER if paler else 1.0, "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"},
                "xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "x": x, "y": y, "hoverinfo": "skip",
            })  # fmt: skip
    return traces


def _outlines(left: Columns, right: Columns, top: Columns, bottom: Columns) -> tuple[list[Any], list[Any]]:
    """Return closed rectangles one after the other, separated by None."""
    x: list[Any] = []
    y: list[Any] = []
    for a, b, c, d in zip(left.tolist(), right.tolist(), top.tolist(), bottom.tolist(), strict=True):
        x += [_short(a), _short(b), _short(b), _short(a), _short(a), None]
        y += [_short(c), _short(c), _short(d), _short(d), _short(c), None]
    return x[:-1], y[:-1]


def _short(value: float) -> float:
    """Return a value rounded to six significant digits, enough for a small picture."""
    return float(f"{value:.6g}")
