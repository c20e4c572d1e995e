"""The jobs of a trace, in the format that a mix names."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from sim.jobs.job import Job
from traces.errors import TraceError
from traces.job_logs import read_alibaba, read_philly
from traces.job_trainings import SubmittedTraining, read_ones, read_pollux
from traces.jobs import RecordedJob, read_jobs

T = TypeVar("T")

JOBS: Final[Mapping[str, Callable[[Path], Sequence[RecordedJob]]]] = {
    "meshtwin": read_jobs, "philly": read_philly, "alibaba": read_alibaba,
}  # fmt: skip
"""Formats that say how long a job lasts."""
TRAININGS: Final[Mapping[str, Callable[[Path], Sequence[SubmittedTraining]]]] = {
    "pollux": read_pollux,
    "ones": read_ones,
}
"""Formats that say what a job trains."""


def recorded_jobs(document: Document, path: Path, name: str) -> Sequence[Job]:
    """Return the rigid jobs of a trace. Raises ScenarioError, with the trace's line, where a row is wrong."""
    rows = _read(document, path, JOBS[name])
    return [Job(row.job_id, row.arrival_s, row.num_gpus, row.duration_s) for row in rows]


def recorded_trainings(document: Document, path: Path, name: str) -> Sequence[SubmittedTraining]:
    """Return the rows of a trace that names trainings. Raises ScenarioError as ``recorded_jobs``."""
    return _read(document, path, TRAININGS[name])


def _read(document: Document, path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except TraceError as error:
        origin = document.origin(("jobs", "trace"))
        raise ScenarioError(origin, "jobs.trace", error.problem, error.remedy) from error
