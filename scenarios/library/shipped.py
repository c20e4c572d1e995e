"""The scenarios and recordings that come with the program: found by name, wherever it is installed."""

import os
from pathlib import Path
from typing import Final

from scenarios.errors import nearest

FOLDER: Final = Path(__file__).parent
_SCENARIO: Final = ".yaml"
_ALIKE: Final = 0.7
"""How like a scenario's name another name must be to be taken for it, 0 to 1."""
RECORDINGS: Final = FOLDER / "recordings"
RECORDED: Final = ".json.gz"
"""How the name of a recording's file ends."""
PARTS: Final = ("", "clusters", "inference", "jobs", "papers", "services")
"""Folders that hold scenarios, below the package."""


def scenario_names() -> list[str]:
    """Return the names of all scenarios: ``quickstart``, ``clusters/rails``, ``papers/fold3d-gpt-6b``, ..."""
    return [name for part in PARTS for name in _names(part)]


def _names(part: str) -> list[str]:
    """Return the names of the scenarios in one folder."""
    files = sorted(name for name in os.listdir(FOLDER / part) if name.endswith(_SCENARIO))
    return [f"{part}/{name.removesuffix(_SCENARIO)}".lstrip("/") for name in files]


def recording_names() -> list[str]:
    """Return the names of all recordings of a profiler: ``resnet-ddp-a100``."""
    return sorted(path.name.removesuffix(RECORDED) for path in RECORDINGS.glob(f"*{RECORDED}"))


def found_recording(path: Path) -> Path:
    """Return a path as it is where something lies there, else the recording that it names, if it names one."""
    name = path.as_posix()
    return path if name not in recording_names() or path.exists() else RECORDINGS / f"{name}{RECORDED}"


def near_recording(path: Path) -> str:
    """Return the name of the recording that a mistyped name is most like, empty if none is alike."""
    return nearest(path.as_posix(), recording_names(), _ALIKE)


def named_recording(path: Path) -> Path:
    """Return what to call a recording: its name where it comes with the program, else its path."""
    return Path(path.name.removesuffix(RECORDED)) if path.parent == RECORDINGS else path


def near_scenario(path: Path) -> str:
    """Return the name of the scenario that a mistyped path or name is most like, empty if none is alike."""
    names = scenario_names()
    asked = _name(path)
    stems = {name.rpartition("/")[2]: name for name in reversed(names)}
    return nearest(asked, names, _ALIKE) or stems.get(nearest(asked.rpartition("/")[2], stems, _ALIKE), "")


def found(path: Path) -> Path:
    """Return a path as it is where something lies there, else the scenario that it names, if it names one.

    A name may end in .yaml, or not, and begin with ``scenarios/library/``, as in the repository.
    """
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long for a file name, or with a NUL character
        exists = True
    name = _name(path)
    part = name.rpartition("/")[0]
    return FOLDER / f"{name}{_SCENARIO}" if not exists and part in PARTS and name in _names(part) else path


def _name(path: Path) -> str:
    return path.as_posix().removeprefix("scenarios/library/").removesuffix(_SCENARIO)
