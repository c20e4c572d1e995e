"""A row per step of many: some of them in sight, first and last among them, all others within reach."""

from collections.abc import Sequence
from typing import Final

from scenarios.report.blocks import Block, Cell, Fold, Only, Table, Text
from scenarios.report.charts.gantt import evenly

MOST_ROWS: Final = 20
"""More rows are not printed, and a page folds them away."""


def step_rows(columns: Sequence[str], rows: Sequence[Sequence[Cell]], notes: Sequence[str] = ()) -> tuple[Block, ...]:
    """Return a table of rows of steps; of more than ``MOST_ROWS`` those that are evenly spaced, and where all are.

    ``notes``: lines below it, for a terminal.
    """
    if len(rows) <= MOST_ROWS:
        return Table(columns, rows), *_printed(*notes)
    shown, every = evenly(rows, MOST_ROWS), f"all {len(rows):,} steps"
    left_out = f"{len(shown)} of {len(rows):,} steps; summary.json of --out DIR has all"
    return (
        Table(columns, shown),
        *_printed(left_out, *notes),
        Only("page", (Fold(every, (Table(columns, rows),)),)),
    )


def _printed(*lines: str) -> tuple[Block, ...]:
    """Return small print of a terminal."""
    return (Only("terminal", tuple(Text(line, is_wrapped=True) for line in lines)),) if lines else ()
