"""Profiles as files: written by ``simulate calibrate``, named by a scenario as ``cluster.profile``."""

from pathlib import Path
from typing import Final

from costmodels.calibration import document as calibration
from costmodels.errors import CatalogueError
from costmodels.hardware import load_node
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.yaml_tree import Document, read_document

PROFILE_HINT: Final = "write one with: simulate calibrate --out my-profile.yaml"
_OTHERS: Final = {"a table of measurements": {"base", "thresholds"}, "a scenario": {"cluster", "model"}}
"""Other kinds of files that users may mistake for a profile, with keys that identify them."""


def read_profile(path: Path) -> "calibration.CalibratedProfile":
    """Return the profile of a file. Raises ScenarioError, with the file, for whatever is wrong with it."""
    return profile_of(read_document(path, PROFILE_HINT))


def profile_of(document: Document) -> "calibration.CalibratedProfile":
    """Return the profile of a file that was read. Raises ScenarioError as ``read_profile``."""
    path = document.source
    other = next((words for words, keys in _OTHERS.items() if keys & document.data.keys()), "")
    if other:
        raise ScenarioError(Origin(str(path)), "", f"this is {other}, not a profile", PROFILE_HINT)
    try:
        calibrated = calibration.parse_calibrated(path.stem, document.data)
        _refuse_unknown_node(calibrated.node)
    except CatalogueError as error:
        rule, _, remedy = str(error).partition("; ")
        raise ScenarioError(document.origin(error.path), dotted(error.path), rule, remedy or PROFILE_HINT) from error
    return calibrated


def _refuse_unknown_node(name: str) -> None:
    """Raise CatalogueError, with its place in a profile, for a node that the catalogue does not have."""
    try:
        load_node(name)
    except CatalogueError as error:
        raise CatalogueError(str(error), error.nearest, ("node",)) from error
