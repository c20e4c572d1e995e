"""The files of a run. Each is written under a temporary name and renamed, so none is ever half there."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scenarios.report import write_comparison, write_report
from traces.parquet import write_timeline
from traces.perfetto import write_perfetto
from traces.timeline import Timeline


def write_all(summary: Mapping[str, Any], timeline: Timeline, out: Path, *, title: str) -> None:
    """Write summary.json, timeline.json.gz (Perfetto), timeline.parquet and report.html into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=2) + "\n"
    _whole(out / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))
    _whole(out / "timeline.json.gz", lambda path: write_perfetto(timeline, path))
    _whole(out / "timeline.parquet", lambda path: write_timeline(timeline, path))
    _whole(out / "report.html", lambda path: write_report(dict(summary), timeline, path, title=title))


def write_execution(
    summary: Mapping[str, Any], simulated: Timeline, executed: Timeline, out: Path, *, title: str
) -> None:
    """Write an execution's summary.json, timeline.json.gz, timeline.parquet and report.html (both timelines)."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=2) + "\n"
    _whole(out / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))
    if not len(executed):
        return
    _whole(out / "timeline.json.gz", lambda path: write_perfetto(executed, path))
    _whole(out / "timeline.parquet", lambda path: write_timeline(executed, path))
    _whole(out / "report.html", lambda path: write_comparison(simulated, executed, path, title=title))


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
