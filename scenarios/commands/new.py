"""``simulate new PATH``: a commented starter file."""

from pathlib import Path
from typing import TextIO

import click

from scenarios.commands.shared.options import NamedPath
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.errors import Origin, ScenarioError
from scenarios.workloads import registry


@click.command("new")
@click.argument("path", type=NamedPath(), metavar="PATH.yaml")
@click.option(
    "--workload",
    default=registry.KINDS[0].name,
    show_default=True,
    metavar="KIND",
    help="Kind of work of the file: simulate list workloads.",
)
def command(path: Path, workload: str) -> None:
    """Write a commented starter file. Never overwrites."""
    with refusing_bad_input():
        write_starter(path, registry.workload_named(workload, Origin(option="--workload")).starter)
    click.echo(f"wrote {path}; try: simulate {path}")


def _fill(file: TextIO, path: Path, text: str) -> None:
    """Write the text; where the disk has no room for it, remove the file that was made."""
    try:
        file.write(text)
        file.flush()
    except OSError:
        path.unlink()
        raise


def write_starter(path: Path, text: str) -> None:
    """Write the starter file. Raises ScenarioError where something is there already or it cannot be written.

    A name without an ending is refused: as ``quickstart`` it would stand in the way of a scenario that ships.
    """
    if path.suffix not in {".yaml", ".yml"}:
        raise ScenarioError(Origin(str(path)), "", "a scenario is a YAML file", "name a file that ends in .yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            _fill(file, path, text)
    except FileExistsError as error:
        raise ScenarioError(Origin(str(path)), "", "there is already such a file", "name another one") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        rule = f"the file cannot be written: {reason.lower()}"
        raise ScenarioError(Origin(str(path)), "", rule, "name a file in a directory that you may write to") from error
