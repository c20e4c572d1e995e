"""``simulate fit TABLE.yaml ... --constant NAME``: what a framework or a device must be like for measured steps."""

import json
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_count, format_percent
from scenarios.commands.shared.options import NamedPath, jobs_option, json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.fitting.measured_steps import FITTED
from scenarios.fitting.step_fit import StepFit, fit_steps, summarise_fit
from scenarios.fitting.step_workers import steps_in_processes
from scenarios.summaries.as_json import as_json as to_json
from scenarios.summaries.measured.fit import FitSummary
from scenarios.sweep.workers import available_cores

_PLACES: Final = (
    "software.KEY into the section software of a scenario or of a table's base",
    "profile.SECTION.KEY into the profile that cluster.profile names",
)
"""Prefixes of constants: of a framework, and of a profile."""


@click.command("fit")
@click.argument("tables", nargs=-1, required=True, type=NamedPath(), metavar="TABLE.yaml...")
@click.option(
    "--constant",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Constant to fit: software.KEY of a scenario, or profile.SECTION.KEY; repeatable.",
)
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="Fit to every N-th row, for speed.")
@jobs_option
@json_option
def command(tables: tuple[Path, ...], names: tuple[str, ...], every: int, jobs: int | None, as_json: bool) -> None:
    """Fit constants to the rows of group `fitted` (to all rows of tables without groups); judge them by the others."""
    with refusing_bad_input(), steps_in_processes(tables, jobs or available_cores()) as steps:
        fit = fit_steps(steps, names, every=every, progress=_shown)
    summary = summarise_fit(fit)
    if as_json:
        click.echo(json.dumps(to_json(summary), indent=2))
    else:
        _print(fit, summary, open_console())


def _shown(line: str) -> None:
    """Show the progress of a fit on a terminal; nothing elsewhere."""
    console = open_console(stderr=True)
    if console.is_terminal:
        console.print(Text(line, "dim"))


def _print(fit: StepFit, summary: FitSummary, console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("constant")
    for words in ("start", "fitted", "standard error"):
        table.add_column(words, justify="right")
    for constant, estimate in fit.found.items():
        error = "at its limit" if estimate.at_limit else "not settled"
        if estimate.standard_error is not None:
            error = format_percent(estimate.standard_error)
        table.add_row(constant.name, constant.text(fit.starts[constant]), constant.text(estimate.value), error)
    console.print(table)
    for label, errors in (("fitted", summary.fitted), ("held out", summary.held_out)):
        if errors is not None:
            rows = format_count(errors.rows, "row")
            mean, most, worst = map(format_percent, (errors.mean_absolute_error, errors.percentile_95, errors.worst))
            console.print(
                Text(f"{label}: {rows}, off by {mean} on average, 95 % of them by at most "
                     f"{most}, the worst {worst}"), soft_wrap=True,
            )  # fmt: skip
    if summary.held_out is None:
        rule = f"held out: none, so nothing judges the fit; rows of another group than `{FITTED}` would judge it"
        console.print(Text(rule, "dim"), soft_wrap=True)
    places = dict.fromkeys(_PLACES[bool(constant.section)] for constant in fit.found)
    console.print(Text(f"nothing was written; to use them, write {' and '.join(places)}", "dim"), soft_wrap=True)
