"""What writes files is loaded when files are asked for: half of the time that the command takes to start goes to it."""

from importlib import import_module
from typing import Any


def load_writer() -> Any:
    """Return ``scenarios.results.outcome_files``, imported."""
    return import_module("scenarios.results.outcome_files")
