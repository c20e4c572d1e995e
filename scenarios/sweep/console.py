"""A sweep in the terminal: the fastest point first, then what was refused and why."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.summaries.sweep import SweepSummary
from scenarios.sweep.page import sweep_blocks


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


def print_sweep(summary: SweepSummary[Any], console: Console, out: Path | None) -> None:
    """Print a sweep for people."""
    print_blocks(sweep_blocks(summary), console)
    print_written(out, console)
