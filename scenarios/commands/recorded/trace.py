"""``simulate trace PATH``: what a profile of the PyTorch profiler shows."""

import json
from pathlib import Path

import click

from scenarios.commands.recorded.step_window import steps_option, window_of
from scenarios.commands.shared.options import Folder, RecordingPath, json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.library.shipped import named_recording
from scenarios.recorded.trace_summary import summarise
from scenarios.report.pages.trace_page import trace_blocks
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.results.outcome_files import write_outcome
from scenarios.results.result import refuse_other_than_recording
from scenarios.summaries.as_json import as_json as to_json
from traces.chakra.file import is_chakra
from traces.errors import TraceError
from traces.kineto.trace import load, to_timeline


@click.command("trace")
@click.argument("path", type=RecordingPath())
@steps_option
@click.option(
    "--out", type=Folder(), metavar="DIR", help="Folder for report.html, summary.json and the timeline's files."
)
@json_option
def command(path: Path, steps: str, out: Path | None, as_json: bool) -> None:
    """Summarise traces of the PyTorch profiler: one trace, or a folder or tar archive with one per rank.

    PATH may be the name of a recording that comes with the program: simulate list recordings.
    """
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        refuse_other_than_recording(path)
        if is_chakra(path):
            remedy = "simulate replay takes them; here name what the PyTorch profiler recorded"
            raise TraceError(str(path), "these are Chakra execution traces", remedy)
        trace = load(path, window_of(steps))
        summary = summarise(named_recording(path), steps, trace)
        if out is not None:
            timeline = to_timeline(trace)
            with writing_to(out):
                write_outcome(to_json(summary), timeline, trace_blocks(summary, timeline), out)
    if as_json:
        click.echo(json.dumps(to_json(summary), indent=2))
        return
    for warning in summary.warnings:
        click.echo(f"warning: {warning.text}", err=True)
    console = open_console()
    print_blocks(trace_blocks(summary), console)
    if out is not None:
        console.print()
        print_written(out, console)
