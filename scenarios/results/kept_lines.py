"""Lines of JSON in a file, each kept as it comes: what was cut off goes on where it was."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from msgspec import MsgspecError, Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.results.folder import refuse_unwritable

_MOST_LINE_BYTES: Final = 1 << 16
_REMEDY: Final = "name another folder, or remove the file to begin anew"


class KeptFile(Struct, frozen=True):
    """A file of kept lines: its ``name``, and its first line, which says whose they are.

    ``most_lines``: after the first. ``no_line``, ``not_ours``: the rules that refuse another line, another first one.
    """

    name: str
    head: Mapping[str, str]
    most_lines: int
    no_line: str
    not_ours: str


Keep = Callable[[Mapping[str, Any]], None]
"""Writes an entry at once. Safe from several threads."""


@contextmanager
def kept_lines(folder: Path, kept: KeptFile, take: Callable[[Any], None]) -> Iterator[Keep]:
    """Give every entry that a folder's file holds to ``take``; yield what writes another one.

    ``take`` raises ValueError or MsgspecError for what is no entry. A last line that was cut off is dropped. Raises
    ScenarioError for a folder that cannot be written, or a file that is not ours.
    """
    refuse_unwritable(folder, "--resume")
    folder.mkdir(parents=True, exist_ok=True)
    path, lock = folder / kept.name, threading.Lock()
    with path.open("a+b") as file:
        length = _read(file, path, kept, take)
        file.truncate(length)
        if not length:
            _write(file, kept.head)

        def keep(entry: Mapping[str, Any]) -> None:
            with lock:
                _write(file, entry)

        yield keep


def _read(file: BinaryIO, path: Path, kept: KeptFile, take: Callable[[Any], None]) -> int:
    """Give the entries of a file to ``take``; return the bytes of its whole lines."""
    length = 0
    file.seek(0)
    for number in range(kept.most_lines + 1):
        line = file.readline(_MOST_LINE_BYTES)
        if not line.endswith(b"\n"):
            if len(line) == _MOST_LINE_BYTES:
                raise _refusal(path, number, f"{kept.no_line}: it has more than {_MOST_LINE_BYTES:,} bytes")
            if not number and not _line(kept.head).startswith(line):
                raise _refusal(path, number, kept.no_line)  # not ours, and so not to be written over
            break
        try:
            entry = json.loads(line, parse_constant=_finite, parse_float=_finite)
            if number:
                take(entry)
        except (ValueError, MsgspecError, RecursionError) as error:
            raise _refusal(path, number, kept.no_line) from error
        if not number and entry != kept.head:
            raise _refusal(path, number, kept.not_ours)
        length += len(line)
    return length


def _finite(text: str) -> float:
    """Return a number as a line has it. Raises ValueError for infinity and for what is no number: we write neither."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _write(file: BinaryIO, entry: Mapping[str, Any]) -> None:
    file.write(_line(entry))
    file.flush()


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _refusal(path: Path, number: int, rule: str) -> ScenarioError:
    return ScenarioError(Origin(file=str(path), line=number + 1), "", rule, _REMEDY)
