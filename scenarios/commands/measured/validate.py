"""``simulate validate [TABLE ...]``: predict published measurements, or with --here those of this machine."""

import json
import sys
from pathlib import Path

import click

from scenarios.calibration.request import budget_seconds
from scenarios.commands.shared.options import Folder, NamedPath, json_option
from scenarios.commands.shared.progress import measuring
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.answer import print_validation
from scenarios.console.here import print_here
from scenarios.console.terminal import open_console
from scenarios.here import this_machine
from scenarios.here.plan_set import PACKAGED, read_plan_set
from scenarios.results.folder import refuse_unwritable
from scenarios.summaries.as_json import as_json as to_json
from scenarios.this_computer import physical_memory_bytes
from scenarios.validation import published
from scenarios.validation.accuracy import markdown_lines

_DEFAULT_BUDGET = "420 s"


@click.command("validate")
@click.argument("tables", nargs=-1, type=NamedPath(), metavar="[TABLE.yaml]...")
@click.option("--data", type=NamedPath(), metavar="CSV", help="Other rows for the one given TABLE.yaml.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown, as in docs/accuracy.md.")
@click.option(
    "--here",
    is_flag=True,
    help="Calibrate this machine, run plans on it, and compare. A given file is then a set of plans.",
)
@click.option(
    "--budget", metavar="TIME", help=f"With --here: time for measurements and runs. Default: {_DEFAULT_BUDGET}."
)
@click.option(
    "--out", type=Folder(), metavar="DIR", help="With --here: folder for summary, plans, the profile and its page."
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="With --here: seed of the orders of runs.")
@json_option
def command(
    tables: tuple[Path, ...],
    data: Path | None,
    as_markdown: bool,
    here: bool,
    budget: str | None,
    out: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Predict published measurements, or times of plans on this machine; fail if errors exceed thresholds."""
    if here:
        if data is not None or as_markdown or len(tables) > 1:
            message = "--here takes one set of plans at most, and neither --data nor --markdown"
            raise click.UsageError(message)
        passed = _validate_here(tables[0] if tables else PACKAGED, budget or _DEFAULT_BUDGET, out, seed, as_json)
    else:
        if budget is not None or out is not None or seed:
            message = "--budget, --out and --seed belong to runs on this machine; also write --here"
            raise click.UsageError(message)
        passed = _validate_tables(tables, data, as_markdown, as_json)
    if not passed:
        sys.exit(1)


def _validate_tables(tables: tuple[Path, ...], data: Path | None, as_markdown: bool, as_json: bool) -> bool:
    """Predict published tables, print them, and return whether all pass."""
    if data is not None and len(tables) != 1:
        message = "--data holds rows for one table; name exactly one TABLE.yaml"
        raise click.UsageError(message)
    if as_markdown and as_json:
        message = "--markdown and --json both choose the output; name one"
        raise click.UsageError(message)
    with refusing_bad_input():
        summary = published.run(tables, data=data)
    if as_json:
        click.echo(json.dumps(summary.as_json(), indent=2))
    elif as_markdown:
        click.echo("\n".join(markdown_lines(summary)))
    else:
        print_validation(summary, open_console())
    return summary.passed


def _validate_here(path: Path, budget: str, out: Path | None, seed: int, as_json: bool) -> bool:
    """Run and predict a set of plans, print and write the result, and return whether it passes."""
    with refusing_bad_input():
        plans, budget_s = read_plan_set(path), budget_seconds(budget)
        if out is not None:
            refuse_unwritable(out)
        memory_bytes = physical_memory_bytes()
        summary, calibration = this_machine.run(
            plans, budget_s=budget_s, seed=seed, measuring=measuring, memory_bytes=memory_bytes
        )
        if out is not None:
            named = "" if path == PACKAGED else f" {path.name}"
            command_line = f"simulate validate --here{named} --budget {budget!r} --seed {seed}"
            this_machine.write_outputs(summary, calibration, out, command_line)
    if as_json:
        click.echo(json.dumps(to_json(summary), indent=2))
    else:
        print_here(summary, open_console(), out)
    return summary.passed
