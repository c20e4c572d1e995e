"""Temporary folders that are removed at the end, even if a signal ends the program."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from traces.signals import undisturbed


class TemporaryFolders:
    """The current temporary folders of a program, each with the new folders around it."""

    def __init__(self) -> None:
        self._new_parents: dict[Path, Sequence[Path]] = {}

    def add(self, folder: Path, new_parents: Sequence[Path]) -> None:
        """Register a folder made by ``temporary_folder``."""
        self._new_parents[folder] = new_parents

    def discard(self, folder: Path) -> None:
        """Unregister a folder that has been removed."""
        self._new_parents.pop(folder, None)

    def remove(self) -> None:
        """Remove all folders at the end of the program."""
        for folder, new_parents in list(self._new_parents.items()):
            _remove(folder, new_parents)


_FOLDERS: Final[ContextVar[TemporaryFolders | None]] = ContextVar("temporary folders", default=None)
"""The folders of the running program; None if no signal handler ends it by an exception."""


@contextmanager
def collecting_temporary_folders() -> Iterator[TemporaryFolders]:
    """Yield the folders that ``temporary_folder`` makes in the block and has not removed yet.

    An exception from a signal handler may come between a block and its ``finally``. A handler that raises one must
    remove these folders afterwards.
    """
    folders = TemporaryFolders()
    token = _FOLDERS.set(folders)
    try:
        yield folders
    finally:
        _FOLDERS.reset(token)


@contextmanager
def temporary_folder(parent: Path, prefix: str, *, new_parents: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a new folder in ``parent`` that is removed at the end with its contents.

    ``new_parents``: folders to make first, the innermost first; at the end the empty ones are removed.
    """
    folders, folder = _FOLDERS.get() or TemporaryFolders(), None
    try:
        with undisturbed():
            for each in reversed(new_parents):
                each.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            folders.add(folder, new_parents)
        yield folder
    finally:
        _remove(folder, new_parents)
        if folder is not None:
            folders.discard(folder)


def _remove(folder: Path | None, new_parents: Sequence[Path]) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for each in new_parents:
        with suppress(OSError):
            each.rmdir()
