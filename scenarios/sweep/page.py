"""What a sweep answers, as blocks: all points in one table, what its kind of work says of them, what was refused."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from scenarios.report.blocks import Block, Card, Column, Headline, Line, Only, Piece, Section, Table, Text
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.report.rendering.html_page import write_page
from scenarios.summaries.point_names import label, varied
from scenarios.summaries.sweep import RefusedPoint, SweepSummary
from scenarios.sweep.table import rows_of
from scenarios.workloads.registry import workload_named
from scenarios.workloads.workload import Workload

MAX_NAMED: Final = 8
"""Points of a rule that are named; sweep.json and sweep.csv have all."""
_NUMBER: Final = re.compile(r"\b\d[\d.,]*")


def write_sweep_page(summary: SweepSummary[Any], pictures: Sequence[Thumbnail], path: Path) -> None:
    """Write the page of a sweep from its summary and the pictures of its points, in the same order."""
    write_page(path, sweep_blocks(summary, pictures))


def sweep_blocks(summary: SweepSummary[Any], pictures: Sequence[Thumbnail] = ()) -> tuple[Block, ...]:
    """Return the blocks of a sweep from its summary and the pictures of its points, in the same order."""
    kind = workload_named(summary.workload)
    fixed = [f"{s.key}={s.values[0]}" for s in summary.settings if len(s.values) == 1]
    subtitle = " · ".join([f"one {kind.point} per point, by {', '.join(varied(summary)) or 'nothing'}", *fixed])
    swept, points = kind.swept(summary, pictures), _table(summary)
    order = _order(summary, kind)
    best = [Text((Piece(swept.best, "strong"),), is_wrapped=True)] if swept.best else []
    notes = [f"{line}." for line in (swept.explained, *swept.warnings) if line]
    remarks = [Text((Piece(swept.explained, "soft"),))] if swept.explained else []
    remarks += [Text((Piece(line, "warning"),)) for line in swept.warnings]
    refused = f"{len(summary.refused)} refused" if summary.refused else ""
    cards = (*swept.cards, Card("Points", f"{len(summary.points):,}", refused))
    return (
        Only("page", (Headline(summary.scenario, subtitle, cards),)),
        Only("terminal", (_title(summary, order), points, *best, *remarks)),
        Only("page", (Section("All points", (points,), f"By {order}.", " ".join(notes)),)),
        *swept.sections,
        *(_refused(summary) if summary.refused else []),
    )


def _order(summary: SweepSummary[Any], kind: Workload[Any]) -> str:
    """Return the order of the points in words."""
    possible = [kind.is_possible(point.results) for point in summary.points]
    return kind.ordered_by if len(set(possible)) == 1 else f"{kind.ordered_by}, those that fit first"


def _title(summary: SweepSummary[Any], order: str) -> Text:
    counts = _counted(len(summary.points), "point")
    return Text((Piece(f"{summary.scenario}, {counts} by {order}", "strong"),), is_wrapped=True)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _table(summary: SweepSummary[Any]) -> Table:
    heads, rows = rows_of(summary)
    num_keys = len(varied(summary))
    columns = [
        Column(head, is_number=place >= num_keys, overflow="anywhere" if place < num_keys else "whole")
        for place, head in enumerate(heads)
    ]
    cells: list[list[Line]] = [[(Piece("NO", "bad"),) if cell == "NO" else cell for cell in row] for row in rows]
    return Table(columns, cells, repeats=num_keys)


class _Reason(Struct, frozen=True):
    """A rule that refuses points: as it is said of the first of them, and the points' names."""

    words: str
    points: tuple[str, ...]
    is_example: bool
    """The others' numbers differ."""

    @property
    def rule(self) -> str:
        """Return the rule; where numbers differ, that of the first point, as an example."""
        return f"such as: {self.words}" if self.is_example else self.words

    @property
    def named(self) -> str:
        """Return the points, of many the first ones."""
        more = len(self.points) - MAX_NAMED
        return "; ".join(self.points[:MAX_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


def _reasons(summary: SweepSummary[Any]) -> list[_Reason]:
    """Return the rules that refuse points, the most frequent first; rules that differ in numbers are one."""
    groups: dict[str, list[RefusedPoint]] = {}
    for entry in summary.refused:
        groups.setdefault(_NUMBER.sub("0", entry.reason), []).append(entry)
    reasons = [
        _Reason(
            entries[0].reason,
            tuple(label(summary, entry.set) for entry in entries),
            is_example=len({entry.reason for entry in entries}) > 1,
        )
        for entries in groups.values()
    ]
    return sorted(reasons, key=lambda reason: -len(reason.points))


def _refused(summary: SweepSummary[Any]) -> tuple[Block, Block]:
    """Return the points that the scenario's rules do not allow, by rule, for each surface in its form."""
    reasons = _reasons(summary)
    rows = [(f"{len(reason.points):,}", reason.rule, reason.named) for reason in reasons]
    table = Table((Column("points"), Column("rule", is_number=False), Column("which", is_number=False)), rows)
    heading = f"{len(summary.refused):,} refused, by {_counted(len(reasons), 'rule')}"
    lines = [
        line
        for reason in reasons
        for line in (
            Text(f"{_counted(len(reason.points), 'point')}, {reason.rule}"),
            Text((Piece(f"    {reason.named}", "soft"),)),
        )
    ]
    return (
        Only("page", (Section("Refused", (table,), "The scenario's rules refuse these."),)),
        Only("terminal", (Text((Piece(heading, "strong"),), is_wrapped=True), *lines)),
    )
