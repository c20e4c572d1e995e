"""``simulate compare SIMULATED REAL``: two timelines side by side."""

import json
import sys
from pathlib import Path

import click

from scenarios import comparison
from scenarios.commands.options import Folder, Percentage, json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console
from scenarios.output_folder import refuse_unwritable, writing_to
from scenarios.side_by_side import print_comparison


@click.command("compare")
@click.argument("simulated", type=click.Path(path_type=Path))
@click.argument("real", type=click.Path(path_type=Path))
@click.option(
    "--fail-above",
    type=Percentage(),
    metavar="PERCENT",
    help="Fail (exit code 1) where they differ by more, as in 10%.",
)
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html and comparison.json.")
@json_option
def command(simulated: Path, real: Path, fail_above: float | None, out: Path | None, as_json: bool) -> None:
    """Compare two results (a folder, or its timeline.parquet): same ops, how long each took, and what decides."""
    with refusing_bad_input():
        if out is None:
            summary = comparison.run(simulated, real, fail_above=fail_above)
        else:
            refuse_unwritable(out)
            with writing_to(out):
                summary = comparison.run(simulated, real, fail_above=fail_above, out=out)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        print_comparison(summary, open_console())
    if not summary["passed"]:
        sys.exit(1)
