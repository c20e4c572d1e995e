"""Temporary folders that are removed at the end, even if a signal ends the program."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from traces.current_folders import current_folders
from traces.signals import undisturbed


@contextmanager
def temporary_folder(parent: Path, prefix: str, *, new_parents: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a new folder in ``parent`` that is removed at the end with its contents.

    ``new_parents``: folders to make first, the innermost first; at the end the empty ones are removed.
    """
    folders, folder = current_folders(), None
    try:
        with undisturbed():
            for each in reversed(new_parents):
                each.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            folders.add(folder, partial(_remove, folder, new_parents))
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
