"""Bars on the terminal while this machine works: it is measured, or it simulates for long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from scenarios.console.terminal import open_console
from scenarios.workloads.effort import Announce, Effort

_REFRESH_S = 0.2


@contextmanager
def measuring(expected_s: float) -> Iterator[None]:
    """Show how much of the budget is spent, on a terminal; nothing elsewhere."""
    with _timed("measuring") as expect:
        expect(expected_s)
        yield


@contextmanager
def simulating(name: str) -> Iterator[Announce]:
    """Yield what tells, before a long simulation, what it takes; on a terminal show how far time has gone."""
    told = list[Effort]()
    with _timed(f"Simulating {name}") as expect:

        def announce(effort: Effort) -> None:
            if effort.is_long and not told:
                told.append(effort)
                click.echo(f"simulating {effort.words}", err=True)
                expect(effort.time_s)

        yield announce


@contextmanager
def _timed(words: str) -> Iterator[Callable[[float], None]]:
    """Show on a terminal for how long something has been going on; yield what says how long it is expected to take."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    done = Event()
    with Progress(*columns, console=console, transient=True) as bar:
        task, begin_s = bar.add_task(escape(words), total=None), monotonic()

        def expect(expected_s: float) -> None:
            bar.update(task, total=expected_s)

        def advance() -> None:
            while not done.wait(_REFRESH_S):
                total_s, spent_s = bar.tasks[0].total, monotonic() - begin_s
                bar.update(task, completed=spent_s if total_s is None else min(spent_s, total_s))

        ticker = Thread(target=advance, daemon=True)
        ticker.start()
        try:
            yield expect
        finally:
            done.set()
            ticker.join()
