"""End the program soon, and with nothing half-done, when a signal tells it to."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Final, NoReturn

from traces.current_folders import CurrentFolders, collecting_temporary_folders
from traces.signals import ENDING_SIGNALS

GRACE_S: Final = 0.8
"""How long the main thread has to tidy up before another thread ends the process."""


class Stopped(BaseException):
    """A signal has told the program to end; no ``except Exception`` keeps it from that."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process soon after SIGINT, SIGTERM or SIGHUP, with one line on standard error and no traceback.

    The main thread raises Stopped, so that every ``with`` and ``finally`` tidies up. Where it cannot, because it is in
    a long call of a library or because something swallowed the exception, a second thread ends the process after
    ``GRACE_S``. Signals that the process was started to ignore (``nohup``) stay ignored.
    """
    if current_thread() is not main_thread():  # Python handles signals in the main thread alone
        yield
        return
    with collecting_temporary_folders() as folders:
        try:
            with _raising_stopped(folders):
                yield
        except Stopped as stop:
            _end_process(stop.signum, folders)


@contextmanager
def _raising_stopped(folders: CurrentFolders) -> Iterator[None]:
    """Handle signals while the block runs, and let a second thread watch that it ends after one of them."""
    handlers = {each: signal.getsignal(each) for each in ENDING_SIGNALS}
    before = {each: handler for each, handler in handlers.items() if handler not in {None, signal.SIG_IGN}}
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    watch = Thread(target=_end_late, args=(read_end, frozenset(before), folders), name="signal watch", daemon=True)
    watch.start()
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        for each in before:
            signal.signal(each, _stop)
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is _stop:  # after a signal all stay ignored until the process has ended
                signal.signal(each, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(write_end)
        watch.join()
        os.close(read_end)


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    """Raise Stopped, once: a second signal must not disturb what the first one has begun."""
    del frame
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(signum)


def _end_late(read_end: int, signals: frozenset[int], folders: CurrentFolders) -> None:
    """End the process some time after a signal; return where the pipe, which tells of signals, is closed before."""
    while not (came := signals.intersection(numbers := os.read(read_end, 64))):
        if not numbers:
            return
    signum, deadline_s = min(came), time.monotonic() + GRACE_S
    while select([read_end], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        if not os.read(read_end, 64):
            return
    folders.remove()
    _say(signum)
    os._exit(128 + signum)


def _end_process(signum: int, folders: CurrentFolders) -> NoReturn:
    """End the process as the signal would have, which is what shells and schedulers look for."""
    folders.remove()  # the exception may have come between a block and its finally
    _say(signum)
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)
    os._exit(128 + signum)  # the first process of a container does not die of signals


def _say(signum: int) -> None:
    """Tell what ended the process, past the locks and buffers that another thread may hold."""
    begin = "\n" if sys.stderr.isatty() else ""  # the terminal has just shown ^C
    with suppress(OSError):
        os.write(2, f"{begin}stopped by {signal.Signals(signum).name}\n".encode())
