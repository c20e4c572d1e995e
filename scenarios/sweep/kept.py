"""Points of a sweep that are done, kept in a folder: a sweep that was cut off goes on where it was."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from msgspec import Meta, MsgspecError, Struct, convert
from msgspec.structs import replace

from scenarios.errors import Origin, ScenarioError
from scenarios.results.folder import refuse_unwritable
from scenarios.summaries.as_json import as_json
from scenarios.sweep.point import Measured
from scenarios.sweep.run import Job
from scenarios.sweep.settings import MAX_POINTS

KEPT: Final = "points.jsonl"
"""A line for the sweep, then one per point, in the order in which they ended."""
KEPT_SCHEMA: Final = "meshtwin.points/1"
_MOST_LINE_BYTES: Final = 1 << 16
_REMEDY: Final = "name another folder, or remove the file to begin anew"


class _KeptPoint(Struct, frozen=True, kw_only=True):
    """A line of the file: the number of a point, and its results or the rule that refuses it."""

    index: Annotated[int, Meta(ge=0, lt=MAX_POINTS)]
    results: dict[str, Any] | None = None
    refused: str | None = None


class KeptPoints:
    """What came of points, by number; each new one is a line of the file at once. Safe from several threads."""

    def __init__(self, done: dict[int, Measured | str], file: BinaryIO) -> None:
        self.done = done
        self._file = file
        self._lock = threading.Lock()

    def add(self, index: int, outcome: Measured | str) -> None:
        """Keep what came of a point."""
        point = _KeptPoint(
            index=index,
            results=None if isinstance(outcome, str) else as_json(outcome.results),
            refused=outcome if isinstance(outcome, str) else None,
        )
        with self._lock:
            _write(self._file, as_json(point))


@contextmanager
def kept_points(folder: Path, job: Job) -> Iterator[KeptPoints]:
    """Yield the points of a sweep that a folder holds. A last line that was cut off is dropped.

    Raises ScenarioError for a folder that cannot be written, or holds the points of another sweep.
    """
    refuse_unwritable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEPT
    with path.open("a+b") as file:
        done, length = _read(file, path, job)
        file.truncate(length)
        if not length:
            _write(file, _head(job))
        yield KeptPoints(done, file)


def _head(job: Job) -> dict[str, str]:
    """Return what tells sweeps apart: the program's version, and the points and the data of all their scenarios."""
    facts = [[point.index, point.values, scenario.document.data] for point, scenario in job.points]
    text = json.dumps(facts, sort_keys=True)
    return {"schema": KEPT_SCHEMA, "version": version("meshtwin"), "sweep": hashlib.sha256(text.encode()).hexdigest()}


def _read(file: BinaryIO, path: Path, job: Job) -> tuple[dict[int, Measured | str], int]:
    """Return the points of a file, and the bytes of its whole lines."""
    done: dict[int, Measured | str] = {}
    length = 0
    file.seek(0)
    for number in range(MAX_POINTS + 1):
        line = file.readline(_MOST_LINE_BYTES)
        if not line.endswith(b"\n"):
            if len(line) == _MOST_LINE_BYTES:
                raise _refusal(path, number, f"a line of more than {_MOST_LINE_BYTES:,} bytes is no point")
            break
        try:
            entry = json.loads(line)
            outcome = _point(entry, job.workload.row_type) if number else None
        except (ValueError, MsgspecError, RecursionError) as error:
            raise _refusal(path, number, "it is no line of a sweep's points") from error
        if outcome is not None:
            done[outcome[0]] = outcome[1]
        elif entry != _head(job):
            rule = "it holds the points of another sweep: another scenario, other values or another version"
            raise _refusal(path, number, rule)
        length += len(line)
    return done, length


def _point(entry: object, row_type: type[Struct]) -> tuple[int, Measured | str]:
    """Return the number of a point and what came of it. Raises ValueError or MsgspecError for anything else."""
    point = convert(entry, _KeptPoint)
    if point.refused is not None:
        return point.index, point.refused
    row, written = convert(point.results, row_type), point.results or {}
    if unknown := written.keys() - set(row_type.__struct_fields__):
        raise ValueError(f"no results: {unknown}")
    as_written = {name: value for name, value in written.items() if value == getattr(row, name)}
    return point.index, Measured(replace(row, **as_written))  # a whole number stays one where the field is a float


def _write(file: BinaryIO, entry: dict[str, Any]) -> None:
    file.write(json.dumps(entry).encode() + b"\n")
    file.flush()


def _refusal(path: Path, number: int, rule: str) -> ScenarioError:
    return ScenarioError(Origin(file=str(path), line=number + 1), "", rule, _REMEDY)
