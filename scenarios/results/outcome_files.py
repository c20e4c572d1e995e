"""The files of a simulation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.report.blocks import Block
from scenarios.report.rendering.html_page import write_page
from scenarios.results.files import all_or_none, write_summary
from scenarios.results.folder import PAGE
from traces.parquet import write_timeline
from traces.perfetto import write_perfetto
from traces.timeline import Timeline


def write_outcome(summary: Mapping[str, Any], timeline: Timeline | None, blocks: Sequence[Block], out: Path) -> None:
    """Write summary.json, report.html, and for a timeline timeline.json.gz and timeline.parquet; all files or none."""
    with all_or_none(out) as staging:
        write_summary(summary, staging)
        if timeline is not None:
            write_perfetto(timeline, staging / "timeline.json.gz")
            write_timeline(timeline, staging / "timeline.parquet")
        write_page(staging / PAGE, blocks)
