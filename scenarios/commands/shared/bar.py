"""A bar on the terminal that goes on while this machine works; only a terminal needs it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from time import monotonic

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from scenarios.console.terminal import open_console

_REFRESH_S = 0.2


class Bar:
    """One bar. ``expect`` and ``say`` change it, from any thread."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def expect(self, expected_s: float) -> None:
        """Take how many seconds the work is expected to take."""
        self._bar.update(self._task, total=expected_s)

    def say(self, words: str) -> None:
        """Take what is being done."""
        self._bar.update(self._task, description=escape(words))


@contextmanager
def timed_bar(words: str) -> Iterator[Bar]:
    """Show on standard error, a terminal, for how long something has been going on; yield what says more of it."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    done = Event()
    with Progress(*columns, console=open_console(stderr=True), transient=True) as bar:
        task, begin_s = bar.add_task(escape(words), total=None), monotonic()

        def advance() -> None:
            while not done.wait(_REFRESH_S):
                total_s, spent_s = bar.tasks[0].total, monotonic() - begin_s
                bar.update(task, completed=spent_s if total_s is None else min(spent_s, total_s))

        ticker = Thread(target=advance, daemon=True)
        ticker.start()
        try:
            yield Bar(bar, task)
        finally:
            done.set()
            ticker.join()


def saying(words: str) -> AbstractContextManager[object]:
    """Show on standard error, a terminal, the work that is going on."""
    return open_console(stderr=True).status(Text(words))
