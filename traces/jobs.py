"""Recorded jobs of a cluster in CSV files, a row per job.

    job_id,arrival_s,num_gpus,duration_s
    1,0,2,100
    2,10,4,20

Other columns are left alone. Arrivals are counted from the first.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from msgspec import Struct
from msgspec.structs import replace

from traces.csv_rows import Row, csv_rows, number, read_file, whole
from traces.errors import TraceError

COLUMNS: Final = ("job_id", "arrival_s", "num_gpus", "duration_s")
MAX_JOBS: Final = 1_000_000
MAX_BYTES: Final = 1 << 28
MAX_GPUS: Final = 100_000
MAX_SECONDS: Final = 1e10
MIN_DURATION_S: Final = 1e-3
MAX_NAME: Final = 200
_REMEDY: Final = f"name a CSV file with the columns {', '.join(COLUMNS)}"


class RecordedJob(Struct, frozen=True):
    """A job: its arrival in seconds after the first job, its number of GPUs, and its duration in seconds."""

    job_id: str
    arrival_s: float
    num_gpus: int
    duration_s: float


def read_jobs(path: Path) -> list[RecordedJob]:
    """Return the jobs of a file. Raises TraceError, with the line, for a file that cannot be read or breaks a rule."""
    return from_first(path, read_file(path, MAX_BYTES, _REMEDY, lambda file: list(_jobs(path, file))))


def from_first(path: Path, jobs: Sequence[RecordedJob]) -> list[RecordedJob]:
    """Return jobs with arrivals counted from the first. Raises TraceError where there is none."""
    if not jobs:
        raise TraceError(str(path), "the file has no jobs", "write a row for each job")
    first_s = min(job.arrival_s for job in jobs)
    return [replace(job, arrival_s=job.arrival_s - first_s) for job in jobs]


def name_of(path: Path, line: int, row: Row, column: str) -> str:
    """Return the name of a job. Raises TraceError for none, and for a very long one."""
    name = row[column].strip()
    if not name or len(name) > MAX_NAME:
        remedy = f"write a name of at most {MAX_NAME} characters"
        raise TraceError(str(path), "the job has no name, or a very long one", remedy, line=line, key=column)
    return name


def check_new(path: Path, line: int, name: str, seen: set[str]) -> None:
    """Note the name of a job. Raises TraceError for one that was there before, and for too many."""
    if name in seen:
        raise TraceError(str(path), f"the job {name} has an earlier row", "write one row for each job", line=line)
    if len(seen) >= MAX_JOBS:
        raise TraceError(str(path), f"more than {MAX_JOBS:,} jobs", "write fewer jobs", line=line)
    seen.add(name)


def _jobs(path: Path, file: TextIO) -> Iterator[RecordedJob]:
    seen = set[str]()
    for line, row in csv_rows(path, file, COLUMNS, _REMEDY):
        job_id = name_of(path, line, row, "job_id")
        arrival_s = number(path, line, row, "arrival_s", 0.0, MAX_SECONDS)
        num_gpus = whole(path, line, row, "num_gpus", MAX_GPUS)
        job = RecordedJob(
            job_id, arrival_s, num_gpus, number(path, line, row, "duration_s", MIN_DURATION_S, MAX_SECONDS)
        )
        check_new(path, line, job_id, seen)
        yield job
