"""Safe standard output and standard error: everything printed passes here on its way to a terminal.

Names come from files of other people, and a terminal obeys some characters (colours, titles, text that runs backwards).
Such characters are written as escapes (``\\x1b``), and so are characters that the terminal's encoding lacks.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from scenarios.errors import printable

READER_GONE: Final = 128 + getattr(signal, "SIGPIPE", 13)
"""The exit code of a program whose reader goes away, as ``head`` does: the code that shells report for SIGPIPE."""
_STANDARD: Final = (0, 1, 2)


class SafeStream:
    """A text stream that writes unprintable characters as escapes.

    ``rich_proxied_file`` is the stream itself, under the name by which rich looks for it: the escapes of a console are
    colours, and ``Terminal`` cleans the texts that it prints.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would pass unchecked
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write text; end the program if the reader is gone."""
        if not isinstance(text, str):
            message = f"text belongs here, not {type(text).__name__}"
            raise TypeError(message)
        try:
            self.rich_proxied_file.write(printable(text))
        except BrokenPipeError:
            leave_quietly()
        return len(text)

    def flush(self) -> None:
        """Flush buffered text; end the program if the reader is gone."""
        try:
            self.rich_proxied_file.flush()
        except BrokenPipeError:
            leave_quietly()


def leave_quietly() -> None:
    """End the program silently, as its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # not every stream has a file
            if _is_broken(stream):
                os.dup2(nowhere, stream.fileno())
    raise SystemExit(READER_GONE)


def _is_broken(stream: TextIO) -> bool:
    """Return whether the reader of a stream is gone; buffered text is flushed to find out."""
    try:
        getattr(stream, "rich_proxied_file", stream).flush()
    except BrokenPipeError:
        return True
    return False


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make standard output and standard error safe. A closed stream stays closed, and no file gets its number."""
    _occupy_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_safe(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _safe(stream: Any) -> Any:
    """Return a stream that escapes unprintable characters; None for a closed stream."""
    if stream is None or isinstance(stream, SafeStream):
        return stream
    if getattr(stream, "errors", "") in {"strict", "surrogateescape"} and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return SafeStream(stream)


def _occupy_closed() -> None:
    """Open the null device in place of closed standard streams, whose numbers the next files would get."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
