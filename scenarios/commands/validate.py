"""``simulate validate [TABLE ...]``: predict published measurements."""

import json
import sys
from pathlib import Path

import click

from scenarios import validation
from scenarios.commands.options import json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console, print_validation


@click.command("validate")
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path), metavar="[TABLE.yaml]...")
@click.option("--data", type=click.Path(path_type=Path), metavar="CSV", help="Other rows for the one TABLE.yaml named.")
@json_option
def command(tables: tuple[Path, ...], data: Path | None, as_json: bool) -> None:
    """Predict the published measurements of traces/published, or of the tables named, and fail past thresholds."""
    if data is not None and len(tables) != 1:
        message = "--data holds rows for one table; name exactly one TABLE.yaml"
        raise click.UsageError(message)
    with refusing_bad_input():
        summary = validation.run(tables, data=data)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        print_validation(summary, open_console())
    if not all(table["passed"] for table in summary["tables"]):
        sys.exit(1)
