"""The utilisation of links over the step: the busiest of each kind."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.blocks import HeatMap, Only, Section, Table
from scenarios.report.causes import cause_of
from scenarios.report.charts.axis_unit import time_unit
from scenarios.summaries.steps.step import CommunicationSummary
from sim.cluster.topology.links import LinkKind
from sim.engine.findings.link_use import LinkUse
from sim.plan.words.stream import stream_of

MAX_LINES: Final = 28
MAX_KINDS: Final = 10
NUM_PARTS: Final = 240


def links_section(use: LinkUse, communication: Sequence[CommunicationSummary]) -> Section:
    """Return the heat map, with a line per class of equal links, and the table of links that limited communication.

    ``communication``: the ops of every kind on every stream.
    """
    rows = chosen_rows(use)
    lead = "Each line is a link, or ×n links of equal load; its colour shows the fraction of its bandwidth in use. "
    lead += "The share of the step in use is at the left."
    left_out = len(use.example) - len(rows)
    note = f"{left_out:,} less busy classes of links are not drawn." if left_out else ""
    blocks = Only("page", (_bound_table(communication),)), _heat_map(use, rows)
    return Section("Link utilisation over time", blocks, lead, note)


def _bound_table(communication: Sequence[CommunicationSummary]) -> Table:
    """Return a row per kind of communication: its time, and the parts of that time."""
    columns = ("communication", "held back by", "per rank", "of it latency")
    rows = [
        (
            f"{entry.kind}, {cause_of(entry.stream)[0]}{_direction(entry.stream)}",
            ", ".join(f"{kind} {format_percent(part / entry.time_s, 0)}" for kind, part in entry.bound_s.items()),
            format_time(entry.time_s),
            format_percent(entry.latency_s / entry.time_s, 0),
        )
        for entry in communication[:MAX_KINDS]
        if entry.time_s
    ]
    return Table(columns, rows, text_columns=2)


def _direction(stream: str) -> str:
    """Return the direction of a stream's messages, empty for other communication."""
    direction = stream_of(stream).direction
    return f", {direction}" if direction else ""


def chosen_rows(use: LinkUse) -> list[int]:
    """Return the rows of the busiest links, with at least some of every kind; kind by kind, the busiest first."""
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
    """Return the name of a row's first link, and the number of equal links."""
    count = int(use.count[row])
    return use.topology.name_of(int(use.example[row])) + (f" ×{count:,}" if count > 1 else "")


def _heat_map(use: LinkUse, rows: list[int]) -> HeatMap:
    unit, factor = time_unit(use.makespan_s)
    labels = [f"{link_words(use, row)}  {format_percent(use.busy_fraction[row], 0)}" for row in rows]
    details = [
        f"{LinkKind(int(use.kind[row])).words}, {format_bytes(round(float(use.num_bytes[row])))} in "
        f"{format_time(float(use.busy_s[row]))}" for row in rows
    ]  # fmt: skip
    values = [use.over_time(row, NUM_PARTS).tolist() for row in rows]
    return HeatMap("links", labels, values, details, (unit, use.makespan_s / factor))
