"""``simulate residuals TABLE ... --node NAME``: how far a profile is from measured kernels and collectives."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_change, format_percent, format_time
from scenarios.calibration.request import checked_node
from scenarios.calibration.residuals import TablesAsked, judge
from scenarios.commands.shared.options import NamedPath, Percentage, json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.summaries.as_json import as_json as to_json
from scenarios.summaries.measured.residuals import ProfileErrors


@click.command("residuals")
@click.argument("tables", nargs=-1, required=True, type=NamedPath(), metavar="TABLE...")
@click.option("--node", metavar="NAME", help="Measured node, by its name in the catalogue.")
@click.option(
    "--profile",
    type=NamedPath(),
    metavar="FILE.yaml",
    help="Profile to judge. Default: the packaged profile of the node.",
)
@click.option("--system", metavar="NAME", help="Take the rows of this system from a table of collectives.")
@click.option("--held-out", is_flag=True, help="Use only the rows that calibrate --from holds out of its fit.")
@click.option(
    "--fail-above",
    type=Percentage(),
    metavar="PERCENT",
    help="Fail (exit code 1) if the mean error of a family is larger, as in 10%.",
)
@json_option
def command(
    tables: tuple[Path, ...],
    node: str | None,
    profile: Path | None,
    system: str | None,
    held_out: bool,
    fail_above: float | None,
    as_json: bool,
) -> None:
    """Compare a profile with measured kernels (.parquet) and collectives (.csv), without fitting."""
    with refusing_bad_input():
        spec = checked_node(node, "cpu", from_tables=True)
        asked = TablesAsked(tables=tables, node=spec, profile=profile, system=system, held_out=held_out)
        summary = judge(asked, fail_above)
    if as_json:
        click.echo(json.dumps(to_json(summary), indent=2))
    else:
        _print(summary, open_console())
    if not summary.passed:
        sys.exit(1)


def _print(summary: ProfileErrors, console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("calls")
    for words in ("number", "mean error", "half below", "95 % below", "worst", "bias", "in 90 % intervals"):
        table.add_column(words, justify="right")
    for row in summary.families:
        length = f" longer than {format_time(row.longer_than_s)}" if row.longer_than_s else ""
        errors = map(format_percent, (row.mean_absolute_error, row.median, row.percentile_95, row.worst))
        inside = "-" if row.coverage is None else format_percent(row.coverage)
        table.add_row(row.family + length, f"{row.calls:,}", *errors, format_change(row.bias), inside)
    console.print(table)
    worst = Table("worst predicted", box=None, header_style="bold", pad_edge=False)
    for words in ("measured", "predicted", "error"):
        worst.add_column(words, justify="right")
    for call in summary.worst:
        times = format_time(call.measured_s), format_time(call.predicted_s)
        worst.add_row(Text(call.call), *times, format_change(call.error))
    console.print()
    console.print(worst)
    console.print(Text(f"profile {summary.profile} on {summary.node}", style="dim"), soft_wrap=True)
