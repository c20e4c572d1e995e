"""Profiles as files: written by ``simulate calibrate``, named by a scenario as ``cluster.profile``."""

from pathlib import Path
from typing import Final

from costmodels.calibration.document import CalibratedProfile, parse_calibrated
from costmodels.errors import CatalogueError
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.yaml_tree import read_document

_REMEDY: Final = "write one with: simulate calibrate --out my-profile.yaml"
_OTHERS: Final = {"a table of measurements": {"base", "thresholds"}, "a scenario": {"cluster", "model"}}
"""What a file may be in the place of a profile, with keys that give it away."""


def read_profile(path: Path) -> CalibratedProfile:
    """Return the profile of a file. Raises ScenarioError, with the file, for whatever is wrong with it."""
    document = read_document(path, _REMEDY)
    other = next((words for words, keys in _OTHERS.items() if keys & document.data.keys()), "")
    if other:
        raise ScenarioError(Origin(str(path)), "", f"this is {other}, not a profile", _REMEDY)
    try:
        return parse_calibrated(path.stem, document.data)
    except CatalogueError as error:
        raise ScenarioError(Origin(str(path)), "", str(error), _REMEDY) from error
