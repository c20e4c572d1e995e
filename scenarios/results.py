"""What ``--out`` left behind: a timeline, and beside it the summary that belongs to it."""

import json
from pathlib import Path
from typing import Any, Final

from scenarios.summary import SCHEMA
from traces.errors import TraceError
from traces.parquet import read_timeline
from traces.timeline import Timeline

TIMELINE: Final = "timeline.parquet"
MAX_SUMMARY_BYTES: Final = 1 << 26
_REMEDY: Final = "write both again with simulate SCENARIO.yaml --out"


def timeline_path(path: Path) -> Path:
    """Return the timeline that a folder of results holds, or the file itself."""
    return path / TIMELINE if path.is_dir() else path


def read_result(path: Path) -> tuple[Timeline, dict[str, Any] | None]:
    """Return the timeline of a result, and its summary where a simulation wrote one beside it.

    Raises TraceError for a file that is no timeline, and for a summary that is not this timeline's.
    """
    file = timeline_path(path)
    timeline = read_timeline(file)
    beside = file.parent / "summary.json"
    if timeline.source != "simulated" or not beside.is_file():
        return timeline, None
    summary = _read_summary(beside)
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA or "communication" not in summary:
        return timeline, None
    step_s = summary.get("iteration_time_s")
    if not isinstance(step_s, float) or abs(step_s - timeline.duration_s) > 1e-9 * timeline.duration_s:
        rule = f"it says {step_s} s, and {file.name} beside it {timeline.duration_s} s"
        raise TraceError(str(beside), rule, _REMEDY)
    return timeline, summary


def _read_summary(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_SUMMARY_BYTES:
            raise TraceError(str(path), "the file is larger than 64 MiB", "check that this is the right file")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(str(path), f"the summary cannot be read: {error}", _REMEDY) from error


def names_of(first: Path, second: Path) -> tuple[str, str]:
    """Return what to call two results: their folders, where these have different names."""
    names = [timeline_path(path).absolute().parent.name for path in (first, second)]
    return (names[0], names[1]) if names[0] != names[1] and all(names) else ("first", "second")
