"""Measured trainings: the times of their steps by placement and batch, and the statistics of their gradients by epoch.

A folder holds three files:

    steps.csv       application, placement, num_nodes, num_gpus, local_batch, step_s, sync_s. ``placement``: GPUs of
                    each node, a digit each (124: three nodes with 1, 2 and 4 GPUs); empty where only numbers are known
    epochs.csv      application, batch_size, epoch (from 1), progress, iterations, grad_sqr, grad_var; rows in order.
                    ``progress``: at the epoch's end, in steps of the least batch; ``iterations``: steps of this batch
    trainings.yaml  citation, source, licence, and applications: a mapping for each, with the optional keys
                    most_local_batch (of a GPU), chosen_batch (where a job chooses its batch, it is this one), most_gpus
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import msgspec
import yaml
from msgspec import Meta, Struct

from traces.csv_rows import Row, csv_rows, number, read_file, whole
from traces.errors import TraceError
from traces.sidecar import read_text

FOLDER: Final = Path(__file__).parent / "trainings"
MAX_BYTES: Final = 1 << 25
MAX_ROWS: Final = 200_000
MAX_BATCH: Final = 1_000_000_000
MAX_SECONDS: Final = 1e6
MAX_STATISTIC: Final = 1e150
MOST_SYNC: Final = 1.0 - 1e-6
"""Part of a step in its synchronisation."""
STEPS: Final = ("application", "placement", "num_nodes", "num_gpus", "local_batch", "step_s", "sync_s")
EPOCHS: Final = ("application", "batch_size", "epoch", "progress", "iterations", "grad_sqr", "grad_var")
_REMEDY: Final = "the docstring of traces/measured_trainings.py shows what a folder of trainings needs"

Count = Annotated[int, Meta(ge=1, le=MAX_BATCH)]


class MeasuredStep(Struct, frozen=True):
    """Seconds of a step, and of the synchronisation in it. ``counts``: GPUs of each node; empty if unknown."""

    counts: tuple[int, ...]
    num_nodes: int
    num_gpus: int
    local_batch: int
    step_s: float
    sync_s: float


class MeasuredEpoch(Struct, frozen=True):
    """The end of an epoch, and its gradients: squared norm of the mean, and variance, at the least batch."""

    progress: float
    iterations: float
    grad_sqr: float
    grad_var: float


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of an application that its tables do not state."""

    most_local_batch: Count | None = None
    chosen_batch: Count | None = None
    most_gpus: Count | None = None


class RecordedTraining(Struct, frozen=True):
    """An application: its steps, and its epochs by batch, the least first; all batches have equally many."""

    name: str
    steps: tuple[MeasuredStep, ...]
    epochs: Mapping[int, tuple[MeasuredEpoch, ...]]
    limits: Limits


class _Sidecar(Struct, frozen=True, forbid_unknown_fields=True):
    citation: str
    source: str
    licence: str
    applications: dict[str, Limits]


def first_rotation(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the least rotation of a ring of nodes: all of them synchronise alike."""
    return min(counts[place:] + counts[:place] for place in range(len(counts)))


def training_names() -> tuple[str, ...]:
    """Return the names of the packaged folders."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/trainings.yaml")))


def read_trainings(folder: Path) -> Mapping[str, RecordedTraining]:
    """Return the applications of a folder. Raises TraceError, with file and line, for one that breaks a rule."""
    limits = _sidecar(folder / "trainings.yaml").applications
    steps: dict[str, list[MeasuredStep]] = {name: [] for name in limits}
    epochs: dict[str, dict[int, list[MeasuredEpoch]]] = {name: {} for name in limits}
    path = folder / "steps.csv"
    for name, step in read_file(path, MAX_BYTES, _REMEDY, lambda file: list(_steps(path, file, limits))):
        steps[name].append(step)
    path = folder / "epochs.csv"
    read_file(path, MAX_BYTES, _REMEDY, lambda file: _add_epochs(path, file, epochs))
    return {name: _training(folder, name, steps[name], epochs[name], its) for name, its in limits.items()}


def _sidecar(path: Path) -> _Sidecar:
    try:
        values: Any = yaml.safe_load(read_text(path, _REMEDY))
        return msgspec.convert(values, _Sidecar)
    except (yaml.YAMLError, RecursionError, msgspec.ValidationError) as error:
        raise TraceError(str(path), f"it does not state trainings: {str(error)[:200]}", _REMEDY) from error


def _training(
    folder: Path, name: str, steps: list[MeasuredStep], epochs: Mapping[int, list[MeasuredEpoch]], limits: Limits
) -> RecordedTraining:
    """Return an application. Raises TraceError where its tables lack something, say it twice, or leave no batch."""
    placed = [(first_rotation(step.counts), step.local_batch) for step in steps if step.counts]
    if not placed or len({len(rows) for rows in epochs.values()}) != 1:
        rule = f"{name} has no steps with a placement, no epochs, or batches with other numbers of epochs"
        raise TraceError(str(folder), rule, _REMEDY)
    if len(set(placed)) < len(placed):
        raise TraceError(str(folder), f"{name} has two steps of one placement and batch", "leave one out")
    least_local = min(batch for _, batch in placed)
    chosen = limits.chosen_batch or min(epochs)
    if (limits.most_local_batch or least_local) < least_local or not min(epochs) <= chosen <= max(epochs):
        raise TraceError(str(folder), f"{name} has limits outside of its tables", _REMEDY)
    return RecordedTraining(name, tuple(steps), {batch: tuple(epochs[batch]) for batch in sorted(epochs)}, limits)


def _steps(path: Path, file: TextIO, known: Mapping[str, Limits]) -> Iterator[tuple[str, MeasuredStep]]:
    for line, row in _rows(path, file, STEPS, known):
        num_nodes, num_gpus = (whole(path, line, row, column, MAX_BATCH) for column in ("num_nodes", "num_gpus"))
        digits = row["placement"].strip()
        counts = tuple("0123456789".find(digit) for digit in digits)
        if digits and (min(counts) < 1 or (len(counts), sum(counts)) != (num_nodes, num_gpus)):
            rule = f"the placement {digits[:40]!r} has not {num_gpus} GPUs on {num_nodes} nodes"
            raise TraceError(str(path), rule, "write a digit from 1 for each node", line=line, key="placement")
        step_s = number(path, line, row, "step_s", 1e-9, MAX_SECONDS)
        sync_s = number(path, line, row, "sync_s", 0.0, MOST_SYNC * step_s)
        batch = whole(path, line, row, "local_batch", MAX_BATCH)
        yield row["application"], MeasuredStep(counts, num_nodes, num_gpus, batch, step_s, sync_s)


def _add_epochs(path: Path, file: TextIO, found: Mapping[str, dict[int, list[MeasuredEpoch]]]) -> None:
    for line, row in _rows(path, file, EPOCHS, found):
        rows = found[row["application"]].setdefault(whole(path, line, row, "batch_size", MAX_BATCH), [])
        before = rows[-1].progress if rows else 0.0
        epoch = MeasuredEpoch(
            number(path, line, row, "progress", before, 1e12), number(path, line, row, "iterations", 0.0, 1e12),
            number(path, line, row, "grad_sqr", 0.0, MAX_STATISTIC),
            number(path, line, row, "grad_var", 0.0, MAX_STATISTIC),
        )  # fmt: skip
        rows.append(epoch)
        if whole(path, line, row, "epoch", MAX_ROWS) != len(rows) or epoch.progress <= before:
            rule = f"epoch {row['epoch']} does not follow {len(rows) - 1} epochs of this batch with less progress"
            raise TraceError(str(path), rule, "write the epochs of a batch in order, from 1", line=line, key="epoch")


def _rows(path: Path, file: TextIO, columns: tuple[str, ...], known: Mapping[str, Any]) -> Iterator[tuple[int, Row]]:
    """Yield line and cells. Raises TraceError for an application that is not known, and for too many rows."""
    for count, (line, row) in enumerate(csv_rows(path, file, columns, _REMEDY)):
        if row["application"] not in known:
            rule = f"{row['application'][:40]!r} is not in trainings.yaml"
            raise TraceError(str(path), rule, "list it under applications", line=line, key="application")
        if count >= MAX_ROWS:
            raise TraceError(str(path), f"more than {MAX_ROWS:,} rows", "write fewer", line=line)
        yield line, row
