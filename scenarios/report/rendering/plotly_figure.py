"""Charts as plotly's plain ``data`` and ``layout``. The colours of text and grid come with the page."""

from typing import Any, Final

from costmodels.units import format_time
from scenarios.report.blocks import Bars, Block, Chart, Figure, HeatMap, Limit, Lines, Timeline
from scenarios.report.charts.axis_unit import drawn_number, drawn_numbers, time_unit
from scenarios.report.charts.gantt import (
    CHUNK_OPACITY,
    COMMUNICATION_LANE,
    MAIN_LANE,
    Gantt,
    window_title,
)
from scenarios.report.charts.gantt import Bars as TaskBars
from scenarios.report.charts.hover_text import WHOLE_TEXT, chart_text, hover_template, hover_text
from scenarios.report.phases import Phase
from traces.timeline import NO_INDEX

_GAP: Final = 0.02
_LEAST_EDGED: Final = 0.003
"""Bars below this part of the picture get no white edge, which would cover them."""
_LEGEND_LINE: Final = 20
"""Height in pixels of an entry of plotly's legend; a lower chart scrolls its legend."""
_ROOM_ABOVE: Final = 1.04
"""Upper end of an axis, relative to a limit marked on it."""
HEAT_SCALE: Final = (
    (0.0, "rgba(128,140,160,0.10)"),
    (0.15, "rgba(228,180,80,0.5)"),
    (0.4, "rgba(228,165,65,1)"),
    (0.7, "rgba(221,115,55,1)"),
    (1.0, "rgba(179,38,30,1)"),
)
"""Colours from idle to full, equally visible on white and on black."""


def plotly_chart(block: Block) -> Chart | None:
    """Return a block's chart with figure and height, None for a block that is no chart."""
    match block:
        case Chart():
            return block
        case Bars():
            return Chart(block.id, _bars(block), 76 + 30 * max(2, len(block.rows)))
        case Lines():
            return Chart(block.id, _lines(block), max(340, 80 + _LEGEND_LINE * len(block.curves)))
        case HeatMap():
            return Chart(block.id, _heat_map(block), 70 + max(80, 24 * len(block.rows)))
        case Timeline():
            num_ranks = len(block.gantt.ranks)
            height = 60 + max(110, min(64, max(34, 640 // max(1, num_ranks))) * num_ranks)
            return Chart(block.id, _timeline(block.gantt), height)
    return None


def _bars(block: Bars) -> Figure:
    rows = [chart_text(row) for row in block.rows]
    data = [
        {
            "type": "bar", "orientation": "h", "name": series.words, "y": rows, "marker": {"color": series.colour},
            "x": drawn_numbers(series.values),
            "hovertext": [hover_text(series.words, detail, before=row)
                          for row, detail in zip(block.rows, series.details, strict=True)],
            "hovertemplate": WHOLE_TEXT,
        }
        for series in block.series
    ]  # fmt: skip
    axis: dict[str, Any] = {"title": {"text": block.axis, "standoff": 6}, "zeroline": False}
    if block.ends_at is not None:
        axis["range"] = [0, block.ends_at]
    layout = {
        "barmode": "stack", "bargap": 0.35, "margin": {"l": 8, "r": 12, "t": 22, "b": 44}, "hovermode": "closest",
        "xaxis": axis, "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticksuffix": "  "},
        "showlegend": False,
    }  # fmt: skip
    if block.limit:
        _mark_limit(layout, "x", block.limit)
    return {"data": data, "layout": layout}


def _lines(block: Lines) -> Figure:
    (x_words, x_unit), names = block.x_axis, [chart_text(curve.words) for curve in block.curves]
    title, at = (f"{x_words} ({x_unit})", f"%{{x:.4g}} {x_unit}") if x_unit else (x_words, f"{x_words} %{{x:.4g}}")
    data = [
        {
            "type": "scatter", "mode": "lines", "name": name, "x": drawn_numbers(curve.xs),
            "y": drawn_numbers(curve.ys), "line": {"shape": "hv", "width": 1.4, "color": curve.colour},
            "hovertemplate": hover_template(f"%{{y:.4g}} {block.y_axis} at {at}", strong=name),
        }
        for name, curve in zip(names, block.curves, strict=True)
    ]  # fmt: skip
    layout: dict[str, Any] = {
        "margin": {"l": 8, "r": 12, "t": 18, "b": 44}, "hovermode": "closest", "showlegend": len(data) > 1,
        "legend": {"orientation": "v", "x": 1.01, "y": 1, "font": {"size": 12}},
        "xaxis": {"title": {"text": title, "standoff": 6}, "zeroline": False, "showgrid": False,
                  "range": [0, drawn_number(block.ends_at)]},
        "yaxis": {"title": {"text": block.y_axis, "standoff": 6}, "rangemode": "tozero", "automargin": True,
                  "zeroline": False},
    }  # fmt: skip
    if block.limit:
        _mark_limit(layout, "y", block.limit)
    return {"data": data, "layout": layout}


def _mark_limit(layout: dict[str, Any], axis: str, limit: Limit) -> None:
    """Draw a dashed line at the limit, inside the picture."""
    at, other = drawn_number(limit.value), "y" if axis == "x" else "x"
    line = {"color": "#c8402f", "width": 1.5, "dash": "dash"}
    layout["shapes"] = [
        {"type": "line", f"{axis}0": at, f"{axis}1": at, f"{axis}ref": axis, f"{other}0": 0, f"{other}1": 1,
         f"{other}ref": "paper", "line": line}
    ]  # fmt: skip
    where = {"x": 1, "y": at, "xref": "paper", "yref": "y", "xanchor": "right", "yanchor": "bottom"}
    if axis == "x":
        where = {"x": at, "y": 1, "xref": "x", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    layout["annotations"] = [{**where, "text": chart_text(limit.words), "showarrow": False}]
    layout[f"{axis}axis"]["autorangeoptions"] = {"include": [0, drawn_number(_ROOM_ABOVE * at)]}


def _heat_map(block: HeatMap) -> Figure:
    (unit, duration), num_parts = block.time_axis, max(map(len, block.values), default=1)
    width = duration / num_parts
    trace: dict[str, Any] = {
        "type": "heatmap", "z": [[round(value, 3) for value in values] for values in block.values],
        "x0": round(width / 2, 9), "dx": round(width, 9), "y": [chart_text(row) for row in block.rows],
        "zmin": 0, "zmax": 1, "colorscale": [list(stop) for stop in HEAT_SCALE], "ygap": 2,
        "customdata": [[chart_text(words)] * num_parts for words in block.details],
        "colorbar": {"thickness": 10, "tickformat": ".0%", "outlinewidth": 0, "len": 1.0},
        "hovertemplate": hover_template("%{customdata}", f"%{{z:.0%}} in use at %{{x:.4g}} {unit}", strong="%{y}",
                                        beside_strong=" of the step"),
    }  # fmt: skip
    layout = {
        "margin": {"l": 8, "r": 8, "t": 6, "b": 44},
        "xaxis": {
            "title": {"text": f"time ({unit})", "standoff": 6}, "zeroline": False, "showgrid": False,
            "range": [0, round(duration, 9)],
        },
        "yaxis": {
            "type": "category", "dtick": 1, "automargin": True, "fixedrange": True,
            "range": [len(block.rows) - 0.5, -0.5], "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip
    return {"data": [trace], "layout": layout}


def _timeline(gantt: Gantt) -> Figure:
    unit, factor = time_unit(max(window.end_s for window in gantt.windows))
    layout: dict[str, Any] = {
        "barmode": "overlay", "bargap": 0, "showlegend": False, "hovermode": "closest", "dragmode": "zoom",
        "margin": {"l": 8, "r": 12, "t": 6, "b": 44}, "uniformtext": {"mode": "hide", "minsize": 11},
        "yaxis": {
            "tickvals": list(range(len(gantt.ranks))), "ticktext": [chart_text(rank) for rank in gantt.ranks],
            "automargin": True,
            "range": [len(gantt.ranks) - 0.45, -0.55], "fixedrange": True, "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip
    data: list[dict[str, Any]] = []
    width = (1.0 - _GAP * (len(gantt.windows) - 1)) / len(gantt.windows)
    for index, window in enumerate(gantt.windows):
        suffix = str(index + 1) if index else ""
        begin = index * (width + _GAP)
        layout[f"xaxis{suffix}"] = {
            "domain": [round(begin, 6), round(begin + width, 6)], "anchor": "y", "zeroline": False,
            "range": [drawn_number(window.start_s / factor), drawn_number(window.end_s / factor)],
            "title": {"text": window_title(index, gantt, unit), "standoff": 6},
        }  # fmt: skip
        edged_s = _LEAST_EDGED * (window.end_s - window.start_s) * len(gantt.windows)
        data += [_bar_trace(window.bars.of(phase), phase, f"x{suffix}", (factor, edged_s)) for phase in gantt.phases]
    return {"data": [trace for trace in data if trace["x"]], "layout": layout}


def _bar_trace(bars: TaskBars, phase: Phase, axis: str, scale: tuple[float, float]) -> dict[str, Any]:
    """Return the bars of a phase. ``scale``: seconds of the axis' unit, and the least length of a bar with an edge."""
    factor, edged_s = scale
    offset, thickness = COMMUNICATION_LANE if phase.is_communication else MAIN_LANE
    numbers = [str(number) if number != NO_INDEX else "" for number in bars.microbatch.tolist()]
    spans = list(zip(bars.task, bars.microbatch.tolist(), bars.start_s.tolist(), bars.end_s.tolist(), strict=True))
    trace = {
        "type": "bar", "orientation": "h", "xaxis": axis, "yaxis": "y", "name": phase.words,
        "x": drawn_numbers((bars.end_s - bars.start_s) / factor), "base": drawn_numbers(bars.start_s / factor),
        "y": drawn_numbers(bars.lane + offset), "width": thickness,
        "marker": {
            "color": phase.colour, "opacity": [CHUNK_OPACITY[chunk % 2] for chunk in bars.chunk.tolist()],
            "line": {"width": [0.5 * (end - start > edged_s) for _, _, start, end in spans],
                     "color": "rgba(255,255,255,0.55)"},
        },
        "hovertext": [_bar_words(*span) for span in spans], "hovertemplate": WHOLE_TEXT,
    }  # fmt: skip
    if not phase.is_communication:
        trace |= {
            "text": numbers, "textposition": "inside", "insidetextanchor": "middle",
            "insidetextfont": {"color": "#ffffff", "size": 11}, "constraintext": "inside", "cliponaxis": True,
        }  # fmt: skip
    return trace


def _bar_words(task: str, microbatch: int, start_s: float, end_s: float) -> str:
    which = f", micro-batch {microbatch}" if microbatch != NO_INDEX else ""
    return hover_text(task, f"{format_time(end_s - start_s)}, from {format_time(start_s)}", after=which)
