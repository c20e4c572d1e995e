"""``simulate validate [TABLE ...]``: predict published measurements."""

import json
import sys
from pathlib import Path

import click

from scenarios import validation
from scenarios.accuracy import markdown_lines
from scenarios.commands.options import json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console, print_validation


@click.command("validate")
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path), metavar="[TABLE.yaml]...")
@click.option("--data", type=click.Path(path_type=Path), metavar="CSV", help="Other rows for the one TABLE.yaml named.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown, as the README has them.")
@json_option
def command(tables: tuple[Path, ...], data: Path | None, as_markdown: bool, as_json: bool) -> None:
    """Predict the published measurements of traces/published, or of the tables named, and fail past thresholds."""
    if data is not None and len(tables) != 1:
        message = "--data holds rows for one table; name exactly one TABLE.yaml"
        raise click.UsageError(message)
    if as_markdown and as_json:
        message = "--markdown and --json both say how to print; name one"
        raise click.UsageError(message)
    with refusing_bad_input():
        summary = validation.run(tables, data=data)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    elif as_markdown:
        click.echo("\n".join(markdown_lines(summary)))
    else:
        print_validation(summary, open_console())
    if not all(table["passed"] for table in summary["tables"]):
        sys.exit(1)
