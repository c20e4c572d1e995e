"""What is full when: how busy links are over the step, the busiest of each kind."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.causes import cause_of
from scenarios.report.charts.step_charts import time_unit
from scenarios.report.rendering.markup import escape
from scenarios.report.rendering.page import Chart, Section, table
from sim.cluster.topology.links import LinkKind
from sim.engine.findings.link_use import LinkUse

MAX_LINES: Final = 28
MAX_KINDS: Final = 10
NUM_PARTS: Final = 240
SCALE: Final = [
    [0, "rgba(128,140,160,0.10)"],
    [0.15, "rgba(228,180,80,0.5)"],
    [0.4, "rgba(228,165,65,1)"],
    [0.7, "rgba(221,115,55,1)"],
    [1, "rgba(179,38,30,1)"],
]
"""Colours from idle to full, as visible on white as on black."""


def links_section(use: LinkUse, communication: Sequence[Mapping[str, Any]]) -> Section:
    """Return the heat map, a line per class of links that carry the same, and what communication was held back by.

    ``communication``: as in summary.json.
    """
    rows = chosen_rows(use)
    lead = "A line is a link, or ×n that carry the same; its colour says which part of its bandwidth is in use. "
    lead += "At the left, the share of the step."
    left_out = len(use.example) - len(rows)
    note = f"{left_out:,} less busy classes of links are not drawn." if left_out else ""
    return Section("What is full, and when", lead, _bound_table(communication), _heat_map(use, rows), note)


def _bound_table(communication: Sequence[Mapping[str, Any]]) -> str:
    """Return a line per kind of communication: its time, and what that went to."""
    columns = ("communication", "held back by", "per rank", "of it latency")
    rows = [
        (
            f"{entry['kind']}, {cause_of(entry['stream'])[0]}{_direction(entry['stream'])}",
            ", ".join(f"{kind} {format_percent(part / entry['time_s'], 0)}" for kind, part in entry["bound_s"].items()),
            format_time(entry["time_s"]),
            format_percent(entry["latency_s"] / entry["time_s"], 0),
        )
        for entry in communication[:MAX_KINDS]
        if entry["time_s"]
    ]
    return table(columns, rows, text_columns=2)


def _direction(stream: str) -> str:
    """Return which way messages of a stream go, nothing for other communication."""
    return next((f", {way}" for way in ("forward", "backward") if way in stream), "")


def chosen_rows(use: LinkUse) -> list[int]:
    """Return the rows of the busiest links, at least some of every kind; kind by kind, the busiest of each first."""
    by_use = np.lexsort((use.example, -np.round(use.busy_fraction, 9))).tolist()
    kinds = sorted({int(kind) for kind in use.kind}, key=lambda kind: -use.busy_fraction[use.kind == kind].max())
    of_kind = {kind: [row for row in by_use if use.kind[row] == kind] for kind in kinds}
    most = dict.fromkeys(kinds, 0)
    while sum(most.values()) < MAX_LINES and any(most[kind] < len(of_kind[kind]) for kind in kinds):
        for kind in kinds:
            if most[kind] < len(of_kind[kind]) and sum(most.values()) < MAX_LINES:
                most[kind] += 1
    return [row for kind in kinds for row in of_kind[kind][: most[kind]]]


def link_words(use: LinkUse, row: int) -> str:
    """Return the name of a row's first link, and how many are like it."""
    count = int(use.count[row])
    return use.topology.name_of(int(use.example[row])) + (f" ×{count:,}" if count > 1 else "")


def _heat_map(use: LinkUse, rows: list[int]) -> Chart:
    unit, factor = time_unit(use.makespan_s)
    width = use.makespan_s / NUM_PARTS / factor
    labels = [f"{escape(link_words(use, row))}  {format_percent(use.busy_fraction[row], 0)}" for row in rows]
    details = [
        f"{LinkKind(int(use.kind[row])).words}, {format_bytes(round(float(use.num_bytes[row])))} in "
        f"{format_time(float(use.busy_s[row]))}" for row in rows
    ]  # fmt: skip
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[round(value, 3) for value in use.over_time(row, NUM_PARTS).tolist()] for row in rows],
        "x0": round(width / 2, 9), "dx": round(width, 9), "y": labels,
        "zmin": 0, "zmax": 1, "colorscale": SCALE, "ygap": 2,
        "customdata": [[words] * NUM_PARTS for words in details],
        "colorbar": {"thickness": 10, "tickformat": ".0%", "outlinewidth": 0, "len": 1.0},
        "hovertemplate": "<b>%{y}</b> of the step<br>%{customdata}<br>%{z:.0%} in use at %{x:.4g} " + unit
        + "<extra></extra>",
    }  # fmt: skip
    layout = {
        "margin": {"l": 8, "r": 8, "t": 6, "b": 44},
        "xaxis": {
            "title": {"text": f"time ({unit})", "standoff": 6}, "zeroline": False, "showgrid": False,
            "range": [0, round(use.makespan_s / factor, 9)],
        },
        "yaxis": {
            "type": "category", "dtick": 1, "automargin": True, "fixedrange": True,
            "range": [len(rows) - 0.5, -0.5], "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip
    return Chart("links", {"data": [trace], "layout": layout}, 70 + max(80, 24 * len(rows)))
