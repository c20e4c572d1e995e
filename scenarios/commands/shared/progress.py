"""Bars on the terminal while this machine works: it is measured, or it simulates for long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Protocol

import click

from scenarios.commands.shared import bar
from scenarios.workloads.effort import Announce, Effort


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


def saying(words: str) -> AbstractContextManager[object]:
    """Show on a terminal the work that is going on."""
    return bar.saying(words) if _has_terminal() else nullcontext()


class _Shown(Protocol):
    """What is shown of work that goes on."""

    def expect(self, expected_s: float) -> None:
        """Take how many seconds the work is expected to take."""

    def say(self, words: str) -> None:
        """Take what is being done."""


class _Nothing:
    """Shows nothing, as there is no terminal."""

    def expect(self, expected_s: float) -> None:
        """Show nothing."""

    def say(self, words: str) -> None:
        """Show nothing."""


def _timed(words: str) -> AbstractContextManager[_Shown]:
    """Show on a terminal for how long something has been going on; return what says more of it."""
    return bar.timed_bar(words) if _has_terminal() else nullcontext(_Nothing())


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
