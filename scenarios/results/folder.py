"""Check, before any work is done, that results can be written."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scenarios.errors import Origin, ScenarioError
from traces.signals import undisturbed

MAX_SHOWN: Final = 300
PAGE: Final = "report.html"
"""The page of a result, for all commands."""


def refuse_unwritable(folder: Path, option: str = "--out") -> None:
    """Raise ScenarioError unless files can be written to ``folder``, which need not exist. Leaves nothing behind.

    It writes a file to find out: permissions alone do not show read-only or full file systems. ``option``: that names
    the folder.
    """
    existing = folder.absolute()
    try:
        while not _is_there(existing):
            existing = existing.parent
        if existing.is_symlink() and not existing.exists():
            raise _refusal(option, folder, f"{existing} is a link to nothing", "name a directory")
        if not existing.is_dir():
            raise _refusal(option, folder, f"{existing} is a file, not a directory", "name a directory")
        with undisturbed():
            with tempfile.TemporaryFile(dir=existing):
                pass
            Path(tempfile.mkdtemp(dir=existing)).rmdir()
    except ScenarioError:
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(option, folder, existing, error) from error


def refuse_unwritable_file(file: Path, option: str) -> None:
    """Raise ScenarioError unless a file of this name can be written. Leaves nothing behind."""
    refuse_unwritable(file.parent, option)
    if file.is_dir():
        raise _refusal(option, file, "it is a directory, not a file", "name a file in it")


def _is_there(path: Path) -> bool:
    """Return whether a file, directory or link of this name exists. Raises OSError for an impossible name."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn errors of the file system while results are written, such as a full disk, into a ScenarioError."""
    try:
        yield
    except OSError as error:
        raise _unwritable("--out", folder, folder, error) from error


def _unwritable(option: str, folder: Path, where: Path, error: Exception) -> ScenarioError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    rule = f"nothing can be written in {_shown(where)}: {reason.lower()}"
    return _refusal(option, folder, rule, "name a directory with room that you may write to")


def _refusal(option: str, folder: Path, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError(Origin(option=f"{option} {_shown(folder)}"), "", rule, remedy)


def _shown(path: Path) -> str:
    """Return a path for a message, cut off if it is very long."""
    text = str(path)
    return f"{text[:MAX_SHOWN]}..." if len(text) > MAX_SHOWN else text
