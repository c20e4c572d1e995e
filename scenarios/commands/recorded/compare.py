"""``simulate compare A B``: two timelines side by side."""

import json
import sys
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from scenarios.commands.recorded.step_window import steps_option, window_of
from scenarios.commands.shared.options import Folder, NamedPath, Percentage, json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.comparing import comparison
from scenarios.console.side_by_side import print_comparison
from scenarios.console.terminal import open_console
from scenarios.errors import Origin, ScenarioError
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.results.result import TIMELINE, is_profile


@click.command("compare")
@click.argument("first", type=NamedPath())
@click.argument("second", type=NamedPath())
@click.option(
    "--fail-above",
    type=Percentage(),
    metavar="PERCENT",
    help="Fail (exit code 1) if the step times differ by more, as in 10%.",
)
@steps_option
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html and comparison.json.")
@json_option
def command(first: Path, second: Path, fail_above: float | None, steps: str, out: Path | None, as_json: bool) -> None:
    """Compare two results (a folder, its timeline.parquet, or a profile) op by op, and explain the difference."""
    with refusing_bad_input():
        _refuse_idle_steps(first, second)
    lay_out = partial(comparison.run, first, second, fail_above=fail_above, window=window_of(steps))
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
            _refuse_to_replace(out)
        found = lay_out()
        if out is not None:
            with writing_to(out):
                found.write(out)
    for warning in found.summary.warnings:
        click.echo(f"warning: {warning.side}: {warning.warning.text}", err=True)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        print_comparison(found.summary, open_console(), out)
    if not found.passed:
        sys.exit(1)


def _refuse_idle_steps(first: Path, second: Path) -> None:
    """Raise ScenarioError where steps are chosen, and neither side has any to choose from."""
    asked = click.get_current_context().get_parameter_source("steps") is ParameterSource.COMMANDLINE
    if asked and not any(is_profile(path) for path in (first, second)):
        rule = "neither side is a profile, so there are no steps to choose"
        raise ScenarioError(Origin(option="--steps"), "", rule, "leave it out")


def _refuse_to_replace(out: Path) -> None:
    """Raise ScenarioError for a folder with a result, whose own page would go."""
    if (out / TIMELINE).exists():
        rule = "this folder holds a result, and the comparison would overwrite its report.html"
        raise ScenarioError(Origin(option=f"--out {out}"), "", rule, "name another directory")
