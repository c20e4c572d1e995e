"""Processes of this machine that work for this one. None of them outlives it.

A started process waits for work, a function and its arguments, does it, and waits for more. Its line to this process
ends when this process ends, however it ends: a thread of the started process watches for that and ends it.

A started process does not import the script that this process runs. So a script needs no ``__name__`` guard, and its
functions are no work for other processes: work comes from modules.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_all_start_methods, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from threading import Lock, Thread
from types import ModuleType
from typing import Any, Final, NoReturn

from msgspec import Struct

BEAT: Final = None
"""A message without content: its sender still answers."""
_LEAVE_S: Final = 5.0
"""Time limit for idle processes to end."""
_HIDING: Final = Lock()
"""Held while the script is hidden: two threads that start processes must not hide it from each other."""


class Line:
    """One end of a connection to another process. Several threads may send; one may receive."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = Lock()

    def send(self, message: object) -> None:
        """Send an object that can be pickled. Raises EOFError where the other process has ended."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> Any:
        """Wait for an object and return it. Raises EOFError where the other process has ended."""
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        """Tell the other process that no more will come."""
        self._connection.close()


class LocalProcess(Struct, frozen=True):
    """A started process and the line to it."""

    process: BaseProcess
    line: Line

    def begin(self, function: Callable[..., None], *arguments: Any) -> None:
        """Let the process call ``function(line, *arguments)``. Raises EOFError where it has ended."""
        self.line.send((function, arguments))

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has closed its line: -9 after SIGKILL; None where it still runs."""
        self.process.join(_LEAVE_S)
        return self.process.exitcode


@contextmanager
def local_processes(
    count: int, *, beat_s: float | None = None, imported: Sequence[str] = ()
) -> Iterator[list[LocalProcess]]:
    """Yield ``count`` processes. At the end of the block all are gone: after an error at once, else when they are idle.

    ``beat_s``: each process sends ``BEAT`` at this interval, from before its work is imported until it ends.
    ``imported``: modules that the work needs and that take long to import. A server imports them once, stays until this
    process ends, and forks all processes that ask for modules; it knows the modules and the environment of the first.

        with local_processes(2) as found:
            found[0].begin(answer, 6, 7)  # answer(line, 6, 7) sends what it finds through line
            print(found[0].line.receive())
    """
    resource_tracker.ensure_running()  # with signals as they are: it unblocks those that are held below
    started: list[LocalProcess] = []
    try:
        for _ in range(count):
            started.append(_started(beat_s, imported))
        yield started
        for each in started:
            each.line.close()
        deadline_s = time.monotonic() + _LEAVE_S
        for each in started:
            each.process.join(max(0.0, deadline_s - time.monotonic()))
    finally:
        for each in started:
            each.process.kill()
        for each in started:
            each.process.join()


def import_ahead(modules: Sequence[str]) -> None:
    """Let the server begin to import modules now, so that processes that ask for them later wait less for it.

    It goes by itself when this process ends. Where no process can be forked, nothing happens.
    """
    resource_tracker.ensure_running()
    if _can_fork():
        forkserver.set_forkserver_preload(list(modules))
        with _interrupts_held(), _script_hidden():
            forkserver.ensure_running()


def _can_fork() -> bool:
    return "forkserver" in get_all_start_methods()


def _started(beat_s: float | None, imported: Sequence[str]) -> LocalProcess:
    context: SpawnContext | ForkServerContext = get_context("spawn")
    if imported and _can_fork():
        context = get_context("forkserver")
        context.set_forkserver_preload(list(imported))
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(target=_work, args=(theirs, beat_s), daemon=True)
    with _interrupts_held(), _script_hidden():
        process.start()
    theirs.close()  # so that the end of the process is the end of the line
    return LocalProcess(process, Line(ours))


def replace_ended(started: list[LocalProcess], ended: LocalProcess) -> LocalProcess:
    """Return a process that takes the place of an ended one among those that ``local_processes`` yields."""
    ended.line.close()
    started[started.index(ended)] = found = _started(None, ())
    return found


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that never see Ctrl-C: this process does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Start processes that do not import the script again: ``multiprocessing`` finds an empty module in its place."""
    with _HIDING:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


# --- in a started process ----------------------------------------------------------------------------------


def _work(connection: Connection, beat_s: float | None) -> NoReturn:
    """Do what is asked for until nothing more can come. The imports that the work needs come with the first of it."""
    line = Line(connection)
    Thread(target=_end_with_parent, name="parent watch", daemon=True).start()
    if beat_s is not None:
        Thread(target=_beat, args=(line, beat_s), name="beat", daemon=True).start()
    with suppress(EOFError):
        while True:
            function, arguments = line.receive()
            function(line, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nobody waits for more; Python and torch would take half a second of processor time to tidy up


def _end_with_parent() -> NoReturn:
    """End this process when the one that started it ends, even if that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _beat(line: Line, interval_s: float) -> None:
    with suppress(EOFError):
        while True:
            line.send(BEAT)
            time.sleep(interval_s)
