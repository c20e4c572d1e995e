"""``simulate replay PATH --set KEY=2x``: a recorded run again, with other speeds."""

import json
from pathlib import Path

import click

from scenarios.commands.recorded.step_window import steps_option, window_of
from scenarios.commands.shared.options import Folder, RecordingPath, json_option
from scenarios.commands.shared.refusals import BadInput, refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.recorded.replay_again import chakra_again, profile_again
from scenarios.report.pages.replay_page import replay_blocks
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.results.outcome_files import write_outcome
from scenarios.results.result import refuse_other_than_recording
from scenarios.summaries.as_json import as_json as to_json
from sim.replay.changes import ChangeError, parse_changes
from traces.chakra.file import is_chakra
from traces.comparison.compare import compare


@click.command("replay")
@click.argument("path", type=RecordingPath())
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=2x",
    help="Multiple of the measured value: cluster.network.bandwidth, cluster.network.latency, "
    "cluster.device.compute, cluster.device.copies, cluster.host.speed, the last three of some ranks "
    "(ranks[0-7].device.compute), kernels[PATTERN].",
)
@steps_option
@click.option(
    "--out", type=Folder(), metavar="DIR", help="Folder for report.html, summary.json and the timeline's files."
)
@json_option
def command(path: Path, assignments: tuple[str, ...], steps: str, out: Path | None, as_json: bool) -> None:
    """Run a recording of the PyTorch profiler, or Chakra execution traces, again at other speeds.

    PATH: one trace, or a folder or tar archive with one per rank, or the name of a recording that comes with the
    program: simulate list recordings.
    """
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        refuse_other_than_recording(path)
        again = chakra_again if is_chakra(path) else profile_again
        try:
            replayed = again(path, parse_changes(assignments), window_of(steps))
        except ChangeError as error:
            raise BadInput(f"--set {error.key}: {error.rule};\n    {error.remedy}") from error
        if out is not None:
            blocks = replay_blocks(replayed.summary, compare(replayed.timeline, replayed.measured))
            with writing_to(out):
                write_outcome(to_json(replayed.summary), replayed.timeline, blocks, out)
    if as_json:
        click.echo(json.dumps(to_json(replayed.summary), indent=2))
        return
    for warning in replayed.summary.warnings:
        click.echo(f"warning: {warning.text}", err=True)
    console = open_console()
    print_blocks(replay_blocks(replayed.summary), console)
    if out is not None:
        console.print()
        print_written(out, console)
