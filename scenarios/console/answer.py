"""The readable output of ``simulate`` and ``validate``: the answer, then the parts of the time, then advice."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.console.blocks import print_blocks
from scenarios.report.blocks import Block, Column, Only, Piece, Table, Text
from scenarios.summaries.as_json import as_json
from scenarios.summaries.measured.validation import ValidatedTable, Validation

_LEAST_PERCENT = 5e-4
"""Smaller fractions would round to 0 %, and are shown unrounded."""


def print_validation(summary: Validation, console: Console) -> None:
    """Print predicted against measured, table by table."""
    for entry in summary.tables:
        print_blocks([validation_block(entry)], console)
        console.print()


def validation_block(entry: ValidatedTable) -> Block:
    """Return predicted against measured values of one table of measurements, with the verdict and the citation."""
    most, coverage = entry.thresholds, entry.coverage
    mean = f"mean absolute error {format_percent(entry.mean_absolute_error)} (at most {format_percent(most.mean)})"
    worst = f"worst {format_percent(entry.worst)} (at most {format_percent(most.worst)})"
    inside = "" if coverage is None else f", {format_percent(coverage)} inside their 90 % intervals"
    verdict = Piece("passed", "good") if entry.passed else Piece("FAILED", "bad")
    title = Piece(f"{entry.table}: {entry.prediction} in {entry.unit}", "strong")
    return Only(
        "terminal",
        (
            Text((title,), is_wrapped=True),
            _records(as_json(entry.groups) or _without_empty(as_json(entry.rows))),
            Text((f"{mean}, {worst}{inside}: ", verdict), is_wrapped=True),
            Text((Piece(entry.citation, "soft"),)),
        ),
    )


def _without_empty(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns that are empty in all of them."""
    kept = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    return [{key: row[key] for key in kept} for row in rows]


def _records(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return records as a table, with a column per key of the first record."""
    keys = list(rows[0]) if rows else []
    columns = [Column(key, is_number=not isinstance(rows[0][key], str)) for key in keys]
    return Table(columns, [[_shown(key, row.get(key)) for key in keys] for row in rows])


def _shown(key: str, value: object) -> str:
    """Return a value in the unit of its key's last word."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(_shown(key, part) for part in value)
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_s") and not key.endswith("per_s"):
        return format_time(value)
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith(("error", "fraction", "difference")):
        return format_percent(value) if abs(value) >= _LEAST_PERCENT or not value else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
