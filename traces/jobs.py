"""Recorded jobs of a cluster in CSV files, a row per job.

    job_id,arrival_s,num_gpus,duration_s
    1,0,2,100
    2,10,4,20

Other columns are left alone. Arrivals are counted from the first.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

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
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(str(path), f"the file has more than {MAX_BYTES / 2**20:,.0f} MiB", "write fewer jobs")
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(path, file))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), f"it is no CSV file: {error}", _REMEDY) from error
    if not rows:
        raise TraceError(str(path), "the file has no jobs", "write a row for each job")
    first_s = min(row.arrival_s for row in rows)
    return [replace(row, arrival_s=row.arrival_s - first_s) for row in rows]


def _rows(path: Path, file: Iterator[str]) -> Iterator[RecordedJob]:
    lines = csv.reader(file)
    seen = set[str]()
    try:
        names = [name.strip() for name in next(lines, [])]
        wrong = next((name for name in COLUMNS if names.count(name) != 1), None)
        if wrong is not None:
            rule = f"the column {wrong} is {'there twice' if wrong in names else 'missing'}"
            raise TraceError(str(path), rule, _REMEDY, line=1)
        for cells in lines:
            if len(cells) != len(names):
                rule = f"{len(cells)} cells, where the first line names {len(names)} columns"
                raise TraceError(str(path), rule, "write a cell for each column", line=lines.line_num)
            row = _row(path, lines.line_num, dict(zip(names, cells, strict=True)))
            if row.job_id in seen:
                rule, remedy = f"the job {row.job_id} has an earlier row", "write one row for each job"
                raise TraceError(str(path), rule, remedy, line=lines.line_num)
            if len(seen) >= MAX_JOBS:
                raise TraceError(str(path), f"more than {MAX_JOBS:,} jobs", "write fewer jobs", line=lines.line_num)
            seen.add(row.job_id)
            yield row
    except csv.Error as error:
        raise TraceError(str(path), f"no line of cells: {error}", _REMEDY, line=lines.line_num) from error


def _row(path: Path, line: int, cells: Mapping[str, str]) -> RecordedJob:
    job_id = cells["job_id"].strip()
    if not job_id or len(job_id) > MAX_NAME:
        remedy = f"write a name of at most {MAX_NAME} characters"
        raise TraceError(str(path), "the job has no name, or a very long one", remedy, line=line, key="job_id")
    arrival_s = _number(path, line, cells, "arrival_s", 0.0)
    num_gpus = _number(path, line, cells, "num_gpus", 1.0)
    if num_gpus != int(num_gpus) or num_gpus > MAX_GPUS:
        remedy = f"write a whole number from 1 to {MAX_GPUS:,}"
        raise TraceError(str(path), f"{num_gpus:g} is no number of GPUs", remedy, line=line, key="num_gpus")
    return RecordedJob(job_id, arrival_s, int(num_gpus), _number(path, line, cells, "duration_s", MIN_DURATION_S))


def _number(path: Path, line: int, cells: Mapping[str, str], column: str, least: float) -> float:
    """Return a number of a cell. Raises TraceError for text, and for a number out of its range."""
    try:
        value = float(cells[column])
    except ValueError:
        value = math.nan
    if not least <= value <= MAX_SECONDS:
        rule = f"{cells[column].strip()[:40]!r} is no number from {least:g} to {MAX_SECONDS:g}"
        raise TraceError(str(path), rule, "write such a number", line=line, key=column)
    return value
