"""``simulate compare SIMULATED REAL``: two timelines side by side."""

import json
import sys
from pathlib import Path

import click

from scenarios import comparison
from scenarios.commands.options import Percentage, json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console
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
@json_option
def command(simulated: Path, real: Path, fail_above: float | None, as_json: bool) -> None:
    """Compare two timelines (timeline.parquet): same ops, and how long each took."""
    with refusing_bad_input():
        summary = comparison.run(simulated, real, fail_above=fail_above)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        print_comparison(summary, open_console())
    if not summary["passed"]:
        sys.exit(1)
