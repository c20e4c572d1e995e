"""Files that a scenario names."""

from pathlib import Path

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.text_file import missing_remedy
from scenarios.reading.documents.yaml_tree import Document, KeyPath


def named_file(document: Document, key: KeyPath, name: str, start_hint: str) -> Path:
    """Return the path of the file that a key names: from the scenario's folder, or for ``--set`` from the shell's.

    ``start_hint``: how to come by such a file. Raises ScenarioError, with the key, where nothing lies there.
    """
    origin = document.origin(key)
    folders = [document.source.parent, Path()]
    path, other = (folder / name for folder in (folders[::-1] if origin.from_shell else folders))
    if _is_something(path):
        return path
    remedy = missing_remedy(path, start_hint)
    if _is_something(other):
        begin = "--set begins at the working directory" if origin.from_shell else "a file begins at the file's folder"
        remedy = f"write {other.absolute()}: a path in {begin}"
    raise ScenarioError(origin, dotted(key), f"there is no such file: {path}", remedy)


def _is_something(path: Path) -> bool:
    """Return whether something lies at a path, be it a pipe; True for names that no file can have: reading tells."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True
