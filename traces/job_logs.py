"""Jobs of clusters as their owners publish them.

Philly (Jeon et al., ATC 2019, ``cluster_job_log``): a JSON list of objects with ``jobid``, ``submitted_time`` and
``attempts``, each with ``start_time``, ``end_time`` and ``detail``, a list of nodes with their ``gpus``. A job lasts as
long as all its attempts together, and has the GPUs of the largest. Attempts that end before they begin, and jobs that
never ran to an end, are left out.

Alibaba (Weng et al., NSDI 2022, ``pai_task_table``): CSV without a line of names. A job has the tasks with its name,
from the start of the first to the end of the last, and the GPUs of all of them: ``plan_gpu`` is per cent of a GPU for
each of ``inst_num`` instances, rounded up for a task. Tasks without GPUs or without an end are left out. The arrival is
the start of the first task, as the table has no submission.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from traces.csv_rows import csv_rows, number, read_file, whole
from traces.errors import TraceError
from traces.jobs import (
    MAX_BYTES,
    MAX_GPUS,
    MAX_JOBS,
    MAX_NAME,
    MAX_SECONDS,
    MIN_DURATION_S,
    RecordedJob,
    from_first,
    name_of,
)

ALIBABA: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
_ALIBABA_REMEDY: Final = "name a pai_task_table.csv of Alibaba's cluster-trace-gpu-v2020"
_PHILLY_REMEDY: Final = "name a cluster_job_log of Microsoft's philly-traces"
_DATE: Final = "%Y-%m-%d %H:%M:%S"


def read_philly(path: Path) -> list[RecordedJob]:
    """Return the jobs of Philly's log. Raises TraceError, with the number of the job, for one that breaks a rule."""
    log = read_file(path, MAX_BYTES, _PHILLY_REMEDY, lambda file: _json(path, file))
    if not isinstance(log, list) or len(log) > MAX_JOBS:
        raise TraceError(str(path), f"this is no list of at most {MAX_JOBS:,} jobs", _PHILLY_REMEDY)
    found, seen = [], set[str]()
    for place, entry in enumerate(log):
        try:
            job = _philly_job(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            words = f"there is no {error}" if isinstance(error, KeyError) else str(error)[:200]
            raise TraceError(str(path), f"job {place} of the list: {words}", _PHILLY_REMEDY) from error
        if job is not None and job.job_id in seen:
            raise TraceError(str(path), f"job {place} of the list is there twice", "write one entry for each job")
        if job is not None:
            seen.add(job.job_id)
            found.append(job)
    return from_first(path, found)


def _json(path: Path, file: TextIO) -> Any:
    try:
        return json.load(file)
    except (ValueError, RecursionError) as error:
        raise TraceError(str(path), f"the file is no JSON: {str(error)[:100]}", _PHILLY_REMEDY) from error


def _philly_job(entry: Any) -> RecordedJob | None:
    """Return a job, or None if it never ran to an end. Raises KeyError, TypeError or ValueError for a damaged one."""
    if not isinstance(entry, dict):
        raise TypeError("it is no object with attempts")
    duration_s, num_gpus = 0.0, 0
    for attempt in entry["attempts"]:
        start_s, end_s = _instant_s(attempt["start_time"]), _instant_s(attempt["end_time"])
        count = sum(_num_gpus(node["gpus"]) for node in attempt["detail"])
        if start_s is not None and end_s is not None and end_s > start_s and count:
            duration_s, num_gpus = duration_s + end_s - start_s, max(num_gpus, count)
    arrival_s, name = _instant_s(entry["submitted_time"]), entry["jobid"]
    if not isinstance(name, str | int) or not str(name):
        raise TypeError("its jobid is no name")
    if arrival_s is None or num_gpus < 1 or not duration_s >= MIN_DURATION_S:
        return None
    if num_gpus > MAX_GPUS or duration_s > MAX_SECONDS:
        raise ValueError(f"{num_gpus} GPUs for {duration_s:g} s")
    return RecordedJob(str(name)[:MAX_NAME], arrival_s, num_gpus, duration_s)


def _num_gpus(gpus: Any) -> int:
    """Return the number of GPUs of a node. Raises TypeError for anything but a list."""
    if not isinstance(gpus, list):
        raise TypeError("the gpus of a node are no list")
    return len(gpus)


def _instant_s(text: Any) -> float | None:
    """Return seconds since 1970, or None where there is none."""
    if text is None or text in ("", "None"):
        return None
    return (datetime.strptime(text, _DATE) - datetime(1970, 1, 1)).total_seconds()


@dataclass(slots=True)
class _Tasks:
    """The tasks of a job so far."""

    start_s: float
    end_s: float
    num_gpus: int


def read_alibaba(path: Path) -> list[RecordedJob]:
    """Return the jobs of Alibaba's table of tasks. Raises TraceError, with the line, for one that breaks a rule."""
    jobs = read_file(path, MAX_BYTES, _ALIBABA_REMEDY, lambda file: _alibaba_jobs(path, file))
    rows = (RecordedJob(name, job.start_s, job.num_gpus, job.end_s - job.start_s) for name, job in jobs.items())
    return from_first(path, [job for job in rows if job.duration_s >= MIN_DURATION_S])


def _alibaba_jobs(path: Path, file: TextIO) -> dict[str, _Tasks]:
    found: dict[str, _Tasks] = {}
    for line, name, task in _alibaba_tasks(path, file):
        known = found.setdefault(name, _Tasks(task.start_s, task.end_s, 0))
        known.start_s, known.end_s = min(known.start_s, task.start_s), max(known.end_s, task.end_s)
        known.num_gpus += task.num_gpus
        if known.num_gpus > MAX_GPUS or len(found) > MAX_JOBS:
            rule = f"more than {MAX_GPUS:,} GPUs of a job, or more than {MAX_JOBS:,} jobs"
            raise TraceError(str(path), rule, "write fewer", line=line)
    return found


def _alibaba_tasks(path: Path, file: TextIO) -> Iterator[tuple[int, str, _Tasks]]:
    for line, row in csv_rows(path, file, ALIBABA, _ALIBABA_REMEDY, ALIBABA, headed=False):
        if not row["plan_gpu"].strip() or not row["end_time"].strip() or not row["start_time"].strip():
            continue
        share = number(path, line, row, "plan_gpu", 0.0, 100.0 * MAX_GPUS) / 100.0
        start_s = number(path, line, row, "start_time", 0.0, MAX_SECONDS)
        end_s = number(path, line, row, "end_time", start_s, MAX_SECONDS)
        if share:
            count = whole(path, line, row, "inst_num", MAX_GPUS)
            yield line, name_of(path, line, row, "job_name"), _Tasks(start_s, end_s, math.ceil(count * share - 1e-9))
