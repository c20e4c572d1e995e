"""Traces that say what a job trains, and not how long: those of Pollux and of ONES.

Pollux (Qiao et al., OSDI 2021, simulated workloads): CSV with the columns ``name``, ``time``, ``application`` and
``num_replicas``, and ``batch_size`` if it is there; other columns are left alone. Arrivals are those of the file, as
rounds count from its 0 s. ONES (Bian et al., SC 2021, traces of its artifact): CSV with ten
columns by their place, below a line of names: time, model, task, samples of an epoch, patience, batch, learning rate,
the largest one, accuracy, GPUs. The application is then ``model/task``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from msgspec import Struct
from msgspec.structs import replace

from traces.csv_rows import csv_rows, number, read_file, whole
from traces.errors import TraceError
from traces.jobs import MAX_BYTES, MAX_GPUS, MAX_SECONDS, check_new, name_of

POLLUX: Final = ("name", "time", "application", "num_replicas")
ONES: Final = (
    "time", "model", "task", "epoch_size", "patience", "batch_size", "lr", "max_lr", "target_acc", "num_gpus",
)  # fmt: skip
MAX_BATCH: Final = 1_000_000_000
_POLLUX_REMEDY: Final = f"name a CSV file with the columns {', '.join(POLLUX)}"
_ONES_REMEDY: Final = f"name a CSV file with {len(ONES)} columns: {', '.join(ONES)}"


class SubmittedTraining(Struct, frozen=True):
    """A job: its arrival in seconds, its GPUs, and what it trains.

    ``line``: where it stands in the file. ``samples_per_epoch``, ``batch_size``: None where the file does not say it.
    """

    line: int
    job_id: str
    arrival_s: float
    num_gpus: int
    application: str
    samples_per_epoch: float | None = None
    batch_size: int | None = None


def read_pollux(path: Path) -> list[SubmittedTraining]:
    """Return the jobs of a workload of Pollux. Raises TraceError, with the line, for one that breaks a rule."""
    return _some(path, read_file(path, MAX_BYTES, _POLLUX_REMEDY, lambda file: list(_pollux(path, file))))


def read_ones(path: Path) -> list[SubmittedTraining]:
    """Return the jobs of a trace of ONES. Raises TraceError, with the line, for one that breaks a rule."""
    jobs = _some(path, read_file(path, MAX_BYTES, _ONES_REMEDY, lambda file: list(_ones(path, file))))
    first_s = min(job.arrival_s for job in jobs)
    return [replace(job, arrival_s=job.arrival_s - first_s) for job in jobs]


def _some(path: Path, jobs: list[SubmittedTraining]) -> list[SubmittedTraining]:
    if not jobs:
        raise TraceError(str(path), "the file has no jobs", "write a row for each job")
    return jobs


def _pollux(path: Path, file: TextIO) -> Iterator[SubmittedTraining]:
    seen = set[str]()
    for line, row in csv_rows(path, file, POLLUX, _POLLUX_REMEDY):
        name = name_of(path, line, row, "name")
        check_new(path, line, name, seen)
        yield SubmittedTraining(
            line, name, number(path, line, row, "time", 0.0, MAX_SECONDS),
            whole(path, line, row, "num_replicas", MAX_GPUS), name_of(path, line, row, "application"),
            batch_size=whole(path, line, row, "batch_size", MAX_BATCH) if "batch_size" in row else None,
        )  # fmt: skip


def _ones(path: Path, file: TextIO) -> Iterator[SubmittedTraining]:
    seen = set[str]()
    for line, row in csv_rows(path, file, ONES, _ONES_REMEDY, ONES):
        application = f"{name_of(path, line, row, 'model')}/{name_of(path, line, row, 'task')}"
        check_new(path, line, str(len(seen)), seen)
        yield SubmittedTraining(
            line, str(len(seen) - 1), number(path, line, row, "time", 0.0, MAX_SECONDS),
            whole(path, line, row, "num_gpus", MAX_GPUS), application,
            number(path, line, row, "epoch_size", 1.0, 1e12),
        )  # fmt: skip
