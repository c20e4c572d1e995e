"""summary.json of a simulated step: the parts that a comparison reads, validated first."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from scenarios.summaries.comparing.compared_step import ComparedStep
from traces.errors import TraceError

MAX_SUMMARY_BYTES: Final = 1 << 26
REMEDY: Final = "write both again with simulate SCENARIO.yaml --out"


def read_json(path: Path) -> Any:
    """Return the contents of a summary file. Raises TraceError for a file that is unreadable or too large."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SUMMARY_BYTES + 1)
        value = json.loads(raw) if len(raw) <= MAX_SUMMARY_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(str(path), f"the summary cannot be read: {error}", REMEDY) from error
    if len(raw) > MAX_SUMMARY_BYTES:
        rule = f"the file is larger than {MAX_SUMMARY_BYTES >> 20} MiB, the most that is read"
        raise TraceError(str(path), rule, "check that this is the right file")
    return value


class ExecutedMachine(msgspec.Struct):
    """The machine of an executed step."""

    num_cores: int | None = None


def executed_cores(path: Path, summary: Any) -> int | None:
    """Return the number of cores shared by an executed step's ranks; None on GPUs. Raises TraceError."""
    try:
        return msgspec.convert(summary, ExecutedMachine).num_cores
    except msgspec.ValidationError as error:
        rule = f"the summary is not as execute writes it: {str(error)[:1].lower()}{str(error)[1:]}"
        raise TraceError(str(path), rule, "write it again with simulate execute SCENARIO.yaml --out") from error


def simulated_step(path: Path, summary: Any) -> ComparedStep:
    """Return the parts of a simulated step's summary that a comparison reads.

    Raises TraceError for a summary in another form than simulate writes.
    """
    try:
        found = msgspec.convert(summary, ComparedStep)
    except msgspec.ValidationError as error:
        rule = f"the summary is not as simulate writes it: {str(error)[:1].lower()}{str(error)[1:]}"
        raise TraceError(str(path), rule, REMEDY) from error
    except UnicodeEncodeError as error:
        raise TraceError(str(path), "a name in it is no text: half a character", REMEDY) from error
    for row in found.communication:
        if missing := row.bound_s.keys() - row.fullest_fraction.keys():
            rule = f"fullest_fraction of {row.kind} on {row.stream} lacks {sorted(missing)[0]}, which bound_s has"
            raise TraceError(str(path), rule, REMEDY)
    return found
