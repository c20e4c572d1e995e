"""Write files whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``, renamed to it at the end; after an error nothing is left behind.

    The file gets the permissions that the process's umask gives to any new file.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)
