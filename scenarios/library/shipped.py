"""The scenarios that come with the program: found by name, wherever it is installed."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
PARTS: Final = ("", "clusters", "papers")
"""Folders that hold scenarios, below the package."""


def scenario_names() -> list[str]:
    """Return the names of all scenarios: ``quickstart``, ``clusters/rails``, ``papers/fold3d-gpt-6b``, ..."""
    return [f"{part}/{path.stem}".lstrip("/") for part in PARTS for path in sorted((FOLDER / part).glob("*.yaml"))]


def found(path: Path) -> Path:
    """Return a path as it is where something lies there, else the scenario that it names, if it names one.

    A name may end in .yaml, or not, and begin with ``scenarios/library/``, as in the repository.
    """
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long for a file name, or with a NUL character
        exists = True
    name = path.as_posix().removeprefix("scenarios/library/").removesuffix(".yaml")
    return path if exists or name not in scenario_names() else FOLDER / f"{name}.yaml"
