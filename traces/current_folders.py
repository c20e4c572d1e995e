"""The temporary folders of a running program, for the handler of a signal that ends it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final


class CurrentFolders:
    """The current temporary folders of a program, each with what removes it."""

    def __init__(self) -> None:
        self._removals: dict[Path, Callable[[], None]] = {}

    def add(self, folder: Path, remove: Callable[[], None]) -> None:
        """Register a new folder, and what removes it with the new folders around it."""
        self._removals[folder] = remove

    def discard(self, folder: Path) -> None:
        """Unregister a folder that has been removed."""
        self._removals.pop(folder, None)

    def remove(self) -> None:
        """Remove all folders at the end of the program."""
        for remove in list(self._removals.values()):
            remove()


_FOLDERS: Final[ContextVar[CurrentFolders | None]] = ContextVar("temporary folders", default=None)
"""The folders of the running program; None if no signal handler ends it by an exception."""


def current_folders() -> CurrentFolders:
    """Return the folders of the running program; some that nobody asks for, if no signal handler ends it."""
    return _FOLDERS.get() or CurrentFolders()


@contextmanager
def collecting_temporary_folders() -> Iterator[CurrentFolders]:
    """Yield the folders that ``temporary_folder`` makes in the block and has not removed yet.

    An exception from a signal handler may come between a block and its ``finally``. A handler that raises one must
    remove these folders afterwards.
    """
    folders = CurrentFolders()
    token = _FOLDERS.set(folders)
    try:
        yield folders
    finally:
        _FOLDERS.reset(token)
