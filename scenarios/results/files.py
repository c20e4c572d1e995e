"""The files of a run: all of them complete, or none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any

from scenarios.report.blocks import Block
from scenarios.report.pages.comparison_page import comparison_blocks
from scenarios.report.rendering.html_page import write_page
from scenarios.results.folder import PAGE
from scenarios.summaries.as_json import json_text
from traces.comparison.compare import compare
from traces.parquet import write_timeline
from traces.perfetto import write_perfetto
from traces.signals import undisturbed
from traces.temporary_folders import temporary_folder
from traces.timeline import Timeline


def write_execution(
    summary: Mapping[str, Any],
    simulated: Timeline,
    executed: Timeline,
    out: Path,
    *,
    title: str,
    notes: tuple[str, str],
) -> None:
    """Write an execution's summary.json, timeline.json.gz, timeline.parquet and report.html (both timelines).

    ``notes``: reasons why simulated and executed times may be off, or empty.
    """
    with all_or_none(out) as staging:
        write_summary(summary, staging)
        if len(executed):
            write_perfetto(executed, staging / "timeline.json.gz")
            write_timeline(executed, staging / "timeline.parquet")
            names = ("simulated", "executed")
            blocks = comparison_blocks(compare(simulated, executed), names=names, title=title, notes=notes)
            write_page(staging / PAGE, blocks)


def write_compared(found: Mapping[str, Any], blocks: Sequence[Block], out: Path) -> None:
    """Write comparison.json and report.html into ``out``."""
    with all_or_none(out) as staging:
        (staging / "comparison.json").write_text(json_text(found) + "\n", encoding="utf-8")
        write_page(staging / PAGE, blocks)


def write_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Write summary.json."""
    (folder / "summary.json").write_text(json_text(summary) + "\n", encoding="utf-8")


@contextmanager
def all_or_none(out: Path) -> Iterator[Path]:
    """Yield a temporary folder inside ``out``, and move its files into ``out`` at the end.

    After an error or a signal nothing is left: no file, and no new folder.
    """
    new_parents = [folder for folder in (out, *out.parents) if not folder.exists()]
    with temporary_folder(out, ".meshtwin-", new_parents=new_parents) as folder:
        yield folder
        with undisturbed():
            _move(sorted(folder.iterdir()), out)


def _move(files: Sequence[Path], out: Path) -> None:
    """Rename files into ``out``. Raises OSError, before the first, if a directory has the name of a file."""
    for path in files:
        if (out / path.name).is_dir():
            raise IsADirectoryError(EISDIR, f"{path.name} is a directory there")
    for path in files:
        path.replace(out / path.name)
