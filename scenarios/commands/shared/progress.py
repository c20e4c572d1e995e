"""Bars on the terminal while this machine works: it is measured, or it simulates for long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread
from time import monotonic

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from scenarios.console.terminal import open_console
from scenarios.workloads.effort import Announce, Effort

_REFRESH_S = 0.2


@contextmanager
def measuring(expected_s: float) -> Iterator[None]:
    """Show how much of the budget is spent, on a terminal; nothing elsewhere."""
    with _timed("measuring") as shown:
        shown.expect(expected_s)
        yield


@contextmanager
def simulating(name: str) -> Iterator[Announce]:
    """Yield what tells, before a long simulation, what it takes; on a terminal show how far time has gone."""
    told = list[Effort]()
    with _timed(f"Simulating {name}") as shown:

        def announce(effort: Effort) -> None:
            if effort.is_long and not told:
                told.append(effort)
                click.echo(f"simulating {effort.words}", err=True)
                shown.expect(effort.time_s)

        yield announce


@contextmanager
def searching(words: str, budget_s: float | None) -> Iterator[Callable[[], None]]:
    """Yield what counts simulations, from any thread; show their number on a terminal, and the part of a budget."""
    with _timed(words) as shown:
        if budget_s is not None:
            shown.expect(budget_s)
        done = count(1)
        yield lambda: shown.say(f"{words}: {next(done):,} simulated")


class _Shown:
    """What is shown of work that goes on. Without a bar there is no terminal, and nothing is shown."""

    def __init__(self, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self._bar = bar
        self._task = task

    def expect(self, expected_s: float) -> None:
        """Take how many seconds the work is expected to take."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=expected_s)

    def say(self, words: str) -> None:
        """Take what is being done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=escape(words))


@contextmanager
def _timed(words: str) -> Iterator[_Shown]:
    """Show on a terminal for how long something has been going on; yield what says more of it."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield _Shown()
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    done = Event()
    with Progress(*columns, console=console, transient=True) as bar:
        task, begin_s = bar.add_task(escape(words), total=None), monotonic()

        def advance() -> None:
            while not done.wait(_REFRESH_S):
                total_s, spent_s = bar.tasks[0].total, monotonic() - begin_s
                bar.update(task, completed=spent_s if total_s is None else min(spent_s, total_s))

        ticker = Thread(target=advance, daemon=True)
        ticker.start()
        try:
            yield _Shown(bar, task)
        finally:
            done.set()
            ticker.join()
