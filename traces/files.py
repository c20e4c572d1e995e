"""Writing of files, completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.temporary_folders import temporary_folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``, renamed to it at the end; an error leaves nothing behind.

    The file gets the permissions of any new file under the process's umask.
    """
    with temporary_folder(path.parent, f".{path.name}.") as folder:
        temporary = folder / path.name
        yield temporary
        os.replace(temporary, path)
