"""A bar on the terminal while this machine is measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scenarios.console.terminal import open_console


@contextmanager
def measuring(expected_s: float) -> Iterator[None]:
    """Show how much of the budget is spent, on a terminal; nothing elsewhere."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    done = Event()
    with Progress(TextColumn("measuring"), BarColumn(), TimeElapsedColumn(), console=console, transient=True) as bar:
        task, begin_s = bar.add_task("", total=expected_s), monotonic()

        def advance() -> None:
            while not done.wait(0.2):
                bar.update(task, completed=min(monotonic() - begin_s, expected_s))

        ticker = Thread(target=advance, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
