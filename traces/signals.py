"""Signals that end a program, and a block that defers them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Final

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that tell a program to end: Ctrl-C, kill, a terminal that is closed."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer signals that would end the program until a short block is done.

    Does nothing outside the main thread, since Python handles signals only there.
    """
    if current_thread() is not main_thread():
        yield
        return
    held: list[int] = []
    handlers = {each: signal.getsignal(each) for each in ENDING_SIGNALS}
    replaced = {each: handler for each, handler in handlers.items() if handler not in {None, signal.SIG_IGN}}
    try:
        for each in replaced:
            signal.signal(each, lambda signum, _: held.append(signum))
        yield
    finally:
        for each, handler in replaced.items():
            signal.signal(each, handler)
        for signum in held:
            signal.raise_signal(signum)
