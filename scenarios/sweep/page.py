"""What a sweep answers, as blocks: all points in one table, what its kind of work says of them, what was refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.report.blocks import Block, Card, Column, Headline, Line, Only, Piece, Section, Table, Text
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.report.rendering.html_page import write_page
from scenarios.summaries.point_names import label, varied
from scenarios.summaries.sweep import SweepSummary
from scenarios.sweep.table import rows_of
from scenarios.workloads.registry import workload_named


def write_sweep_page(summary: SweepSummary[Any], pictures: Sequence[Thumbnail], path: Path) -> None:
    """Write the page of a sweep from its summary and the pictures of its points, in the same order."""
    write_page(path, sweep_blocks(summary, pictures))


def sweep_blocks(summary: SweepSummary[Any], pictures: Sequence[Thumbnail] = ()) -> tuple[Block, ...]:
    """Return the blocks of a sweep from its summary and the pictures of its points, in the same order."""
    kind = workload_named(summary.workload)
    fixed = [f"{s.key}={s.values[0]}" for s in summary.settings if len(s.values) == 1]
    subtitle = " · ".join([f"one {kind.point} per point, by {', '.join(varied(summary)) or 'nothing'}", *fixed])
    swept, points = kind.swept(summary, pictures), _table(summary)
    notes = [f"{line}." for line in (swept.explained, *swept.warnings) if line]
    remarks = [Text((Piece(swept.explained, "soft"),))] if swept.explained else []
    remarks += [Text((Piece(line, "warning"),)) for line in swept.warnings]
    refused = f"{len(summary.refused)} refused" if summary.refused else ""
    cards = (*swept.cards, Card("Points", f"{len(summary.points):,}", refused))
    return (
        Only("page", (Headline(summary.scenario, subtitle, cards),)),
        Only("terminal", (_title(summary, kind.ordered_by), points, *remarks)),
        Only("page", (Section("All points", (points,), f"By {kind.ordered_by}.", " ".join(notes)),)),
        *swept.sections,
        *(_refused(summary) if summary.refused else []),
    )


def _title(summary: SweepSummary[Any], ordered_by: str) -> Text:
    points = summary.points
    counts = f"{len(points):,} points" if len(points) != 1 else "1 point"
    return Text((Piece(f"{summary.scenario}, {counts} by {ordered_by}", "strong"),), is_wrapped=True)


def _table(summary: SweepSummary[Any]) -> Table:
    heads, rows = rows_of(summary)
    num_keys = len(varied(summary))
    columns = [
        Column(head, is_number=place >= num_keys, overflow="anywhere" if place < num_keys else "whole")
        for place, head in enumerate(heads)
    ]
    cells: list[list[Line]] = [[(Piece("NO", "bad"),) if cell == "NO" else cell for cell in row] for row in rows]
    return Table(columns, cells)


def _refused(summary: SweepSummary[Any]) -> tuple[Block, Block]:
    """Return the points that the scenario's rules do not allow, for each surface in its form."""
    rows = [(label(summary, entry.set), entry.reason) for entry in summary.refused]
    table = Table(("point", "rule"), rows, text_columns=2)
    heading = Text((Piece(f"{len(rows):,} refused", "strong"),), is_wrapped=True)
    return (
        Only("page", (Section("Refused", (table,), "The scenario's rules refuse these."),)),
        Only("terminal", (heading, *(Text(f"{point}: {reason}") for point, reason in rows))),
    )
