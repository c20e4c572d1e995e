"""A sweep in the terminal: the fastest point first, then what was refused and why."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from scenarios.console.terminal import open_console
from scenarios.sweep.labels import label, varied
from scenarios.sweep.table import EXPLAINED, other_algorithms, rows_of


class Tick(Protocol):
    """Called once for each point that is done."""

    def __call__(self) -> None:
        """Count one more."""


@contextmanager
def progress(num_points: int, words: str) -> Iterator[Tick]:
    """Yield what counts points: a bar on a terminal, nothing in a pipe."""
    terminal = open_console(stderr=True)
    if not terminal.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task(Text(words).markup, total=num_points)
        yield lambda: bar.advance(task)


def print_sweep(summary: Mapping[str, Any], console: Console, out: Path | None) -> None:
    """Print a sweep for people."""
    points, refused = summary["points"], summary["refused"]
    counts = f"{len(points):,} points" if len(points) != 1 else "1 point"
    console.print(Text(f"{summary['scenario']}, {counts} by step time", style="bold"))
    console.print(_table(summary))
    console.print(Text(EXPLAINED, style="dim"), soft_wrap=True)
    for line in other_algorithms(summary):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if refused:
        console.print()
        console.print(Text(f"{len(refused):,} refused", style="bold"))
        for entry in refused:
            console.print(Text(f"{label(summary, entry['set'])}: {entry['reason']}"), soft_wrap=True)
    if out is not None:
        console.print(Text(f"written to {out}"), soft_wrap=True)


def _table(summary: Mapping[str, Any]) -> Table:
    heads, rows = rows_of(summary)
    table = Table(box=None, header_style="bold", pad_edge=False)
    num_keys = len(varied(summary))
    for index, head in enumerate(heads):
        is_key = index < num_keys
        table.add_column(Text(head), justify="left" if is_key else "right", no_wrap=not is_key, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, "bold red" if cell == "NO" else "") for cell in row))
    return table
