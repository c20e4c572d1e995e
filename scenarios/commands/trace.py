"""``simulate trace PATH``: what a profile of the PyTorch profiler shows."""

import json
import re
from pathlib import Path

import click

from scenarios.commands.options import json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console
from scenarios.errors import printable
from scenarios.output_folder import refuse_unwritable, writing_to
from scenarios.outputs import write_trace
from scenarios.trace_summary import print_trace, summarise
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load, to_timeline

ALL = "all"
COMPLETE = "complete"


class Steps(click.ParamType[str]):
    """``all``, ``complete``, a number, or two: ``4-6``."""

    name = "steps"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, once it is known to be one of these."""
        text = str(value).strip()
        numbers = [int(word) for word in re.findall(r"\d+", text)]
        if text not in {ALL, COMPLETE} and not (
            re.fullmatch(r"\d{1,9}(-\d{1,9})?", text) and numbers == sorted(numbers)
        ):
            self.fail(f"{text!r} is no choice of steps; write {ALL}, {COMPLETE}, 4 or 4-6", param, ctx)
        return text


@click.command("trace")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--steps",
    type=Steps(),
    default=COMPLETE,
    show_default=True,
    metavar="all|complete|N|N-M",
    help="Device work that these steps (ProfilerStep) launched; complete: of several steps all but the last.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for summary.json and the timeline's files."
)
@json_option
def command(path: Path, steps: str, out: Path | None, as_json: bool) -> None:
    """Show what the PyTorch profiler recorded: one trace, or a folder with one per rank."""
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        trace = load(path, _window(steps))
        summary = summarise(path, steps, trace)
        if out is not None:
            with writing_to(out):
                write_trace(summary, to_timeline(trace), out)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    for warning in summary["warnings"]:
        click.echo(printable(f"warning: {warning}"), err=True)
    print_trace(summary, open_console(), out)


def _window(steps: str) -> StepWindow | None:
    """Return the steps in question, None for everything."""
    if steps == ALL:
        return None
    if steps == COMPLETE:
        return StepWindow()
    numbers = [int(word) for word in steps.split("-")]
    return StepWindow(numbers[0], numbers[-1])
