"""Lazy import of the writer of files: a terminal needs neither templates nor Parquet."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from scenarios.report import blocks as report
from traces import timeline as timelines

WriteOutcome = Callable[[Mapping[str, Any], "timelines.Timeline | None", "Sequence[report.Block]", Path], None]
"""A writer of summary, timeline and blocks into a folder; see ``scenarios.results.outcome_files``."""


def load_writer() -> WriteOutcome:
    """Return ``scenarios.results.outcome_files.write_outcome``, imported."""
    write: WriteOutcome = import_module("scenarios.results.outcome_files").write_outcome
    return write
