"""Read a small text file that a user named, or say clearly why not."""

import os
from codecs import BOM_UTF8
from pathlib import Path

from scenarios.errors import Origin, ScenarioError, nearest

MAX_FILE_BYTES = 1 << 20
_ALIKE = 0.75
"""How like a file's name another one must be to be taken for it, 0 to 1; many end alike."""


def read_text(path: Path, start_hint: str) -> str:
    """Return the text of a UTF-8 file of at most 1 MiB.

    ``start_hint``: how to come by such a file, for those who have none or an empty one. Raises ScenarioError for
    whatever cannot be read as such.
    """
    origin = Origin(str(path))
    raw = _read_bytes(path, origin, start_hint)
    if len(raw) > MAX_FILE_BYTES:
        rule = "the file is larger than 1 MiB, the most that is read"
        raise ScenarioError(origin, "", rule, "check that this is the right file")
    if b"\0" in raw:
        raise ScenarioError(origin, "", "the file is binary, not text", "check that this is the right file")
    raw = raw.removeprefix(BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        rule = f"byte 0x{raw[error.start]:02x} is not valid UTF-8"
        raise ScenarioError(Origin(str(path), line), "", rule, "save the file as UTF-8 text") from error
    if not text.strip():
        raise ScenarioError(origin, "", "the file is empty", start_hint)
    return text


def _read_bytes(path: Path, origin: Origin, start_hint: str) -> bytes:
    """Return at most one byte more than the limit."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ScenarioError(origin, "", "there is no such file", missing_remedy(path, start_hint)) from error
    except IsADirectoryError as error:
        raise ScenarioError(
            origin, "", "this is a directory, not a file", _directory_remedy(path, start_hint)
        ) from error
    except PermissionError as error:
        rule = "the file cannot be read: permission denied"
        raise ScenarioError(origin, "", rule, f"make it readable: chmod u+r {path}") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError(origin, "", f"the file cannot be read: {reason}", "check the path") from error


def _open_at_once(name: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to opens without waiting, and is empty."""
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def missing_remedy(path: Path, start_hint: str) -> str:
    """Return the nearest file that exists, or what to do if nothing is alike."""
    if str(path) == "-":
        return "write /dev/stdin for what standard input holds"
    try:
        if (here := Path.cwd() / path.name).is_file():
            return f"did you mean {here}?"
        siblings = {entry.name: entry for entry in path.parent.iterdir() if entry.name != path.name}
    except OSError:
        return f"there is no directory {path.parent} either; check the path, or {start_hint}"
    close = nearest(path.name, siblings, _ALIKE)
    if close:
        return f"did you mean {siblings[close]}?"
    return f"check the path, or {start_hint}"


def _directory_remedy(path: Path, start_hint: str) -> str:
    """Return the name of a YAML file inside the directory, if it holds any."""
    try:
        inside = sorted(path.glob("*.yaml"))
    except OSError:
        inside = []
    return f"name a file in it, for example {inside[0]}" if inside else f"name a file, or {start_hint}"
