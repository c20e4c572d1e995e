"""Files that a scenario names."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.text_file import missing_remedy
from scenarios.reading.documents.yaml_tree import Document, KeyPath

FILES_OF_STEPS: Final[tuple[tuple[str, ...], ...]] = (
    ("cluster", "profile"),
    ("model", "huggingface"),
    ("model", "experts", "routing", "trace"),
    ("parallel", "pipeline", "actions"),
)
"""The keys of a training step that hold the name of a file."""


def named_file(document: Document, key: KeyPath, name: str, start_hint: str) -> Path:
    """Return the path of the file that a key names: from the scenario's folder, or for ``--set`` from the shell's.

    ``start_hint``: how to come by such a file. Raises ScenarioError, with the key, where nothing lies there.
    """
    origin = document.origin(key)
    path, other = _places(document, key, name)
    if _is_something(path):
        return path
    remedy = missing_remedy(path, start_hint)
    if _is_something(other):
        begin = "--set begins at the working directory" if origin.from_shell else "a file begins at the file's folder"
        remedy = f"write {other.absolute()}: a path in {begin}"
    raise ScenarioError(origin, dotted(key), f"there is no such file: {path}", remedy)


def written_elsewhere(document: Document, folder: Path) -> dict[str, Any]:
    """Return the values of a training step, its files named as they must be in a file in ``folder``."""
    data = deepcopy(document.data)
    for *sections, last in FILES_OF_STEPS:
        section: Any = data
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        named = section.get(last) if isinstance(section, dict) else None
        if isinstance(named, str) and not Path(named).is_absolute():
            path, _ = _places(document, (*sections, last), named)
            section[last] = os.path.relpath(path.parent.resolve() / path.name, folder.resolve())
    return data


def _places(document: Document, key: KeyPath, name: str) -> tuple[Path, Path]:
    """Return where the file that a key names lies, and where it would lie if the key were written elsewhere."""
    in_file, in_shell = document.source.parent / name, Path(name)
    return (in_shell, in_file) if document.origin(key).from_shell else (in_file, in_shell)


def _is_something(path: Path) -> bool:
    """Return whether something lies at a path, be it a pipe; True for names that no file can have: reading tells."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True
