"""Write files whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.temporary_folders import temporary_folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``, renamed to it at the end; after an error nothing is left behind.

    The file gets the permissions that the process's umask gives to any new file.
    """
    with temporary_folder(path.parent, f".{path.name}.") as folder:
        temporary = folder / path.name
        yield temporary
        os.replace(temporary, path)
