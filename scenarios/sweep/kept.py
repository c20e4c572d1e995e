"""Points of a sweep that are done, kept in a folder: a sweep that was cut off goes on where it was."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from scenarios.results.kept_lines import Keep, KeptFile, kept_lines
from scenarios.summaries.as_json import as_json
from scenarios.sweep.point import Measured
from scenarios.sweep.run import Job
from scenarios.sweep.settings import MAX_POINTS
from scenarios.version import VERSION

KEPT: Final = "points.jsonl"
"""A line for the sweep, then one per point, in the order in which they ended."""
KEPT_SCHEMA: Final = "meshtwin.points/1"


class _KeptPoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file: the number of a point, and its results or the rule that refuses it."""

    index: Annotated[int, Meta(ge=0, lt=MAX_POINTS)]
    results: dict[str, Any] | None = None
    refused: str | None = None


class KeptPoints:
    """What came of points, by number; each new one is a line of the file at once. Safe from several threads."""

    def __init__(self, done: dict[int, Measured | str], keep: Keep) -> None:
        self.done = done
        self._keep = keep

    def add(self, index: int, outcome: Measured | str) -> None:
        """Keep what came of a point."""
        point = _KeptPoint(
            index=index,
            results=None if isinstance(outcome, str) else as_json(outcome.results),
            refused=outcome if isinstance(outcome, str) else None,
        )
        self._keep(as_json(point))


@contextmanager
def kept_points(folder: Path, job: Job) -> Iterator[KeptPoints]:
    """Yield the points of a sweep that a folder holds. A last line that was cut off is dropped.

    Raises ScenarioError for a folder that cannot be written, or holds the points of another sweep.
    """
    done: dict[int, Measured | str] = {}
    known = {point.index for point, _ in job.points}

    def take(entry: object) -> None:
        index, outcome = _point(entry, job.workload.row_type)
        if index in done or index not in known:
            raise ValueError(f"no point {index} of this sweep, or once more")
        done[index] = outcome

    file = KeptFile(
        name=KEPT,
        head=_head(job),
        most_lines=MAX_POINTS,
        no_line="it is no line of a sweep's points",
        not_ours="it holds the points of another sweep: another scenario, other values or another version",
    )
    with kept_lines(folder, file, take) as keep:
        yield KeptPoints(done, keep)


def _head(job: Job) -> dict[str, str]:
    """Return what tells sweeps apart: the program's version, and the points and the data of all their scenarios."""
    facts = [[point.index, point.values, scenario.document.data] for point, scenario in job.points]
    text = json.dumps(facts, sort_keys=True)
    return {"schema": KEPT_SCHEMA, "version": VERSION, "sweep": hashlib.sha256(text.encode()).hexdigest()}


def _point(entry: object, row_type: type[Struct]) -> tuple[int, Measured | str]:
    """Return the number of a point and what came of it. Raises ValueError or MsgspecError for anything else."""
    point = convert(entry, _KeptPoint)
    if point.refused is not None and point.results is not None:
        raise ValueError("both results and a refusal")
    if point.refused is not None:
        return point.index, point.refused
    row, written = convert(point.results, row_type), point.results or {}
    if unknown := written.keys() - set(row_type.__struct_fields__):
        raise ValueError(f"no results: {unknown}")
    as_written = {name: value for name, value in written.items() if value == getattr(row, name)}
    return point.index, Measured(replace(row, **as_written))  # a whole number stays one where the field is a float
