"""The charts of reports, as plotly's plain ``data`` and ``layout``. Colours of text and grid come with the page."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.causes import COMPUTATION, IDLE, cause_of, memory_colour, role_colour
from scenarios.report.charts.gantt import Bars, Gantt, evenly
from scenarios.report.phases import PHASES, Phase
from scenarios.report.rendering.markup import escape
from scenarios.report.rendering.page import Chart
from scenarios.summaries.role_names import row_names
from traces.timeline import NO_INDEX, RankInfo, Timeline

MAX_ROLES: Final = 16
MAX_MEMORY_POINTS: Final = 1_500
_MEMORY_UNITS: Final = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))

MAIN_LANE: Final = (-0.09, 0.62)
COMMUNICATION_LANE: Final = (0.36, 0.2)
"""Distance of a lane's middle from its rank's line, and its thickness, in ranks."""

CHUNK_OPACITY: Final = (1.0, 0.68)
_GAP: Final = 0.02
_LEAST_EDGED: Final = 0.003
"""Bars that are a smaller part of the picture get no white edge: it would be all that is seen of them."""
_LEGEND_LINE: Final = 20
"""Pixels of an entry of plotly's legend: a chart that is lower scrolls it."""
_WINDOWS: Final = ("the beginning", "the middle", "the end")


def time_unit(duration_s: float) -> tuple[str, float]:
    """Return the unit, and its seconds, that suits an axis up to ``duration_s``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if duration_s >= 2 * factor:
            return unit, factor
    return "µs", 1e-6


def memory_unit(num_bytes: float) -> tuple[str, float]:
    """Return the unit, and its bytes, that suits an axis up to ``num_bytes``."""
    for unit, factor in _MEMORY_UNITS:
        if num_bytes >= factor:
            return unit, factor
    return "bytes", 1.0


def gantt_chart(chart_id: str, gantt: Gantt, end_s: float | None = None) -> Chart:
    """Return the pipeline picture; with ``end_s`` a single window's axis ends there."""
    longest_s = max([window.end_s for window in gantt.windows] + ([end_s] if end_s else []))
    unit, factor = time_unit(longest_s)
    layout: dict[str, Any] = {
        "barmode": "overlay", "bargap": 0, "showlegend": False, "hovermode": "closest", "dragmode": "zoom",
        "margin": {"l": 8, "r": 12, "t": 6, "b": 44}, "uniformtext": {"mode": "hide", "minsize": 11},
        "yaxis": {
            "tickvals": list(range(len(gantt.ranks))), "ticktext": [escape(rank) for rank in gantt.ranks],
            "automargin": True,
            "range": [len(gantt.ranks) - 0.45, -0.55], "fixedrange": True, "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip
    data: list[dict[str, Any]] = []
    width = (1.0 - _GAP * (len(gantt.windows) - 1)) / len(gantt.windows)
    for index, window in enumerate(gantt.windows):
        suffix = str(index + 1) if index else ""
        begin = index * (width + _GAP)
        last_s = end_s if end_s and len(gantt.windows) == 1 else window.end_s
        layout[f"xaxis{suffix}"] = {
            "domain": [round(begin, 6), round(begin + width, 6)], "anchor": "y", "zeroline": False,
            "range": [_number(window.start_s / factor), _number(last_s / factor)],
            "title": {"text": window_title(index, gantt, unit), "standoff": 6},
        }  # fmt: skip
        edged_s = _LEAST_EDGED * (last_s - window.start_s) * len(gantt.windows)
        data += [_bar_trace(window.bars.of(phase), phase, f"x{suffix}", (factor, edged_s)) for phase in gantt.phases]
    height = 60 + max(110, min(64, max(34, 640 // max(1, len(gantt.ranks)))) * len(gantt.ranks))
    return Chart(chart_id, {"data": [trace for trace in data if trace["x"]], "layout": layout}, height)


def window_title(index: int, gantt: Gantt, unit: str) -> str:
    """Return what an axis of time says: which window of the step, and the unit."""
    if len(gantt.windows) == 1:
        return f"time ({unit})"
    return f"{_WINDOWS[index]}: time ({unit})"


def _bar_trace(bars: Bars, phase: Phase, axis: str, scale: tuple[float, float]) -> dict[str, Any]:
    """Return the bars of a phase; ``scale``: the seconds of the axis' unit, and from which length bars have an edge."""
    factor, edged_s = scale
    offset, thickness = COMMUNICATION_LANE if phase.is_communication else MAIN_LANE
    numbers = [str(number) if number != NO_INDEX else "" for number in bars.microbatch.tolist()]
    spans = list(zip(bars.task, bars.microbatch.tolist(), bars.start_s.tolist(), bars.end_s.tolist(), strict=True))
    trace = {
        "type": "bar", "orientation": "h", "xaxis": axis, "yaxis": "y", "name": phase.words,
        "x": _numbers((bars.end_s - bars.start_s) / factor), "base": _numbers(bars.start_s / factor),
        "y": _numbers(bars.lane + offset), "width": thickness,
        "marker": {
            "color": phase.colour, "opacity": [CHUNK_OPACITY[chunk % 2] for chunk in bars.chunk.tolist()],
            "line": {"width": [0.5 * (end - start > edged_s) for _, _, start, end in spans],
                     "color": "rgba(255,255,255,0.55)"},
        },
        "hovertext": [_bar_words(*span) for span in spans], "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
    if not phase.is_communication:
        trace |= {
            "text": numbers, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "insidetextfont": {"color": "#ffffff", "size": 11}, "constraintext": "inside", "cliponaxis": True,
        }  # fmt: skip
    return trace


def _bar_words(task: str, microbatch: int, start_s: float, end_s: float) -> str:
    which = f", micro-batch {microbatch}" if microbatch != NO_INDEX else ""
    return f"<b>{escape(task)}</b>{which}<br>{format_time(end_s - start_s)}, from {format_time(start_s)}"


def breakdown_chart(chart_id: str, summary: Mapping[str, Any]) -> Chart:
    """Return one bar per role: what it computed for, what it waited for, idle; as parts of the step."""
    total_s = summary["iteration_time_s"]
    labels, roles = _rows(summary)
    parts: dict[tuple[str, str], list[float]] = {}
    for index, role in enumerate(roles):
        spent = [(COMPUTATION[purpose], seconds) for purpose, seconds in role["computing_s"].items()]
        spent += [(cause_of(stream), seconds) for stream, seconds in role["exposed_s"].items()]
        rest_s = total_s - sum(seconds for _, seconds in spent)
        for key, seconds in [*spent, (IDLE, rest_s if rest_s > 1e-9 * total_s else 0.0)]:
            parts.setdefault(key, [0.0] * len(roles))[index] += seconds
    data = [
        {
            "type": "bar", "orientation": "h", "name": words, "y": labels, "marker": {"color": colour},
            "x": _numbers(100 * np.array(seconds) / total_s),
            "hovertext": [f"{label}: <b>{words}</b><br>{format_time(value)}, {format_percent(value / total_s)}"
                          for label, value in zip(labels, seconds, strict=True)],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
        for (words, colour), seconds in parts.items() if any(seconds)
    ]  # fmt: skip
    layout = _stacked_layout("percent of the step", [0, 100])
    return Chart(chart_id, {"data": data, "layout": layout}, _rows_height(len(roles)))


def memory_by_kind_chart(chart_id: str, summary: Mapping[str, Any], capacity: float | None) -> Chart:
    """Return one bar per role: what its peak is made of, against the device's capacity."""
    labels, roles = _rows(summary)
    unit, factor = memory_unit(capacity or max(role["peak_memory_bytes"] for role in roles))
    data = []
    for kind in dict.fromkeys(kind for role in roles for kind in role["memory_by_kind_bytes"]):
        held = [role["memory_by_kind_bytes"].get(kind, 0) for role in roles]
        words = kind.replace("_", " ")
        data.append({
            "type": "bar", "orientation": "h", "name": words, "y": labels, "marker": {"color": memory_colour(kind)},
            "x": _numbers(np.array(held) / factor),
            "hovertext": [f"{label}: <b>{words}</b><br>{format_bytes(value)}"
                          for label, value in zip(labels, held, strict=True)],
            "hovertemplate": "%{hovertext}<extra></extra>",
        })  # fmt: skip
    layout = _stacked_layout(f"{unit} at the peak", None)
    if capacity:
        _mark_capacity(layout, "x", capacity, factor)
    return Chart(
        chart_id, {"data": [trace for trace in data if any(trace["x"])], "layout": layout}, _rows_height(len(roles))
    )


def memory_curve_chart(chart_id: str, timeline: Timeline, capacity_bytes: float | None) -> Chart:
    """Return live bytes over time, a line per simulated rank, against the device's capacity."""
    infos = evenly([info for info in timeline.ranks if len(timeline.memory.of(info.rank)[0])], MAX_ROLES)
    unit, factor = time_unit(timeline.duration_s)
    memory_words, memory_factor = memory_unit(capacity_bytes or int(timeline.memory.bytes.max()))
    begin_s = float(timeline.start_s.min())
    curve = timeline.memory.thinned(MAX_MEMORY_POINTS)
    data = []
    for index, info in enumerate(infos):
        times_s, held = curve.of(info.rank)
        label = escape(_rank_label(timeline, info))
        data.append({
            "type": "scatter", "mode": "lines", "name": label,
            "x": _numbers(np.append(times_s - begin_s, timeline.duration_s) / factor),
            "y": _numbers(np.append(held, held[-1]) / memory_factor),
            "line": {"shape": "hv", "width": 1.4, "color": role_colour(index / max(1, len(infos) - 1))},
            "hovertemplate": f"<b>{label}</b><br>%{{y:.4g}} {memory_words} at %{{x:.4g}} {unit}<extra></extra>",
        })  # fmt: skip
    layout: dict[str, Any] = {
        "margin": {"l": 8, "r": 12, "t": 18, "b": 44}, "hovermode": "closest", "showlegend": len(infos) > 1,
        "legend": {"orientation": "v", "x": 1.01, "y": 1, "font": {"size": 12}},
        "xaxis": {"title": {"text": f"time ({unit})", "standoff": 6}, "zeroline": False, "showgrid": False,
                  "range": [0, _number(timeline.duration_s / factor)]},
        "yaxis": {"title": {"text": memory_words, "standoff": 6}, "rangemode": "tozero", "automargin": True,
                  "zeroline": False},
    }  # fmt: skip
    if capacity_bytes:
        _mark_capacity(layout, "y", capacity_bytes, memory_factor)
    return Chart(chart_id, {"data": data, "layout": layout}, max(340, 80 + _LEGEND_LINE * len(infos)))


def _rank_label(timeline: Timeline, info: RankInfo) -> str:
    """Return a rank's role, with its number where the role has several."""
    if not info.role:
        return f"rank {info.rank}"
    is_class = sum(other.role == info.role for other in timeline.ranks) > 1
    return f"{info.role}, rank {info.rank}" if is_class else info.role


def _mark_capacity(layout: dict[str, Any], axis: str, capacity_bytes: float, factor: float) -> None:
    """Draw a dashed line at the capacity, inside the picture."""
    at, other = _number(capacity_bytes / factor), "y" if axis == "x" else "x"
    line = {"color": "#c8402f", "width": 1.5, "dash": "dash"}
    layout["shapes"] = [
        {"type": "line", f"{axis}0": at, f"{axis}1": at, f"{axis}ref": axis, f"{other}0": 0, f"{other}1": 1,
         f"{other}ref": "paper", "line": line}
    ]  # fmt: skip
    where = {"x": 1, "y": at, "xref": "paper", "yref": "y", "xanchor": "right", "yanchor": "bottom"}
    if axis == "x":
        where = {"x": at, "y": 1, "xref": "x", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    layout["annotations"] = [{**where, "text": f"capacity {format_bytes(capacity_bytes)}", "showarrow": False}]
    layout[f"{axis}axis"]["autorangeoptions"] = {"include": [0, _number(1.04 * at)]}


def _stacked_layout(title: str, value_range: list[float] | None) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": title, "standoff": 6}, "zeroline": False}
    if value_range:
        axis["range"] = value_range
    return {
        "barmode": "stack", "bargap": 0.35, "margin": {"l": 8, "r": 12, "t": 22, "b": 44}, "hovermode": "closest",
        "xaxis": axis, "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticksuffix": "  "},
        "showlegend": False,
    }  # fmt: skip


def _rows_height(num_rows: int) -> int:
    return 76 + 30 * max(2, num_rows)


def _rows(summary: Mapping[str, Any]) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Return at most MAX_ROLES of the roles, or classes of one, with labels that tell them apart."""
    roles = summary["roles"]
    labels = [
        f"{escape(name)} ×{role['num_ranks']:,}" if role["num_ranks"] > 1 else escape(name)
        for name, role in zip(row_names(roles, "all"), roles, strict=True)
    ]
    chosen = evenly(list(zip(labels, roles, strict=True)), MAX_ROLES)
    return [label for label, _ in chosen], [role for _, role in chosen]


def legend_of(chart: Chart) -> list[tuple[str, str]]:
    """Return words and colours of a chart's traces."""
    return [(trace["name"], trace["marker"]["color"]) for trace in chart.figure["data"]]


def gantt_legend(gantt: Gantt) -> list[tuple[str, str]]:
    """Return words and colours of a pipeline picture's phases."""
    return [(phase.words, phase.colour) for phase in PHASES if phase in gantt.phases]


def _number(value: float) -> float:
    """Return a value with nine significant digits: enough to draw, and half as long to write."""
    return float(f"{value:.9g}")


def _numbers(values: Any) -> list[float]:
    return [_number(value) for value in np.asarray(values).tolist()]
