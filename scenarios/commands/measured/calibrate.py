"""``simulate calibrate --out PROFILE.yaml``: measure this machine, or take measured tables, and fit a profile."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_percent
from scenarios.calibration.calibration import Calibration
from scenarios.calibration.machine import MachineRequest, calibrate_machine, num_cores
from scenarios.calibration.page import write_calibration_page
from scenarios.calibration.request import (
    MachineOptions,
    budget_seconds,
    checked_node,
    refuse_unwritable_files,
    write_profile,
)
from scenarios.calibration.tables import MeasuredTables, calibrate_tables
from scenarios.commands.shared.options import NamedPath, ProfileFile, bundling, json_option
from scenarios.commands.shared.progress import measuring
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.errors import Origin, ScenarioError
from scenarios.results.folder import writing_to
from scenarios.summaries.as_json import as_json as to_json


@click.command("calibrate")
@click.option("--out", type=ProfileFile(), required=True, metavar="PROFILE.yaml", help="File to write.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cpu: processes over gloo; cuda: one GPU per process, over NCCL.",
)
@click.option("--budget", default="60 s", show_default=True, metavar="TIME", help="Time for measurements.")
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    help="Processes that measure at the same time: the number that a job will run here. Default: cores, at least 2.",
)
@click.option(
    "--node", metavar="NAME", help="Name of this machine in the catalogue of nodes. Default on a CPU: local-cpu."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the orders of runs."
)
@click.option(
    "--from",
    "tables",
    type=NamedPath(),
    multiple=True,
    metavar="TABLE",
    help="Fit to this measured table (.parquet of kernels, .csv of collectives) and measure nothing; repeatable.",
)
@click.option("--system", metavar="NAME", help="Take the rows of this system from a table of collectives.")
@click.option("--source", default="", metavar="TEXT", help="Source of the tables; the profile states it.")
@json_option
@bundling(MachineOptions)
@bundling(MeasuredTables)
def command(
    machine: MachineOptions, measured: MeasuredTables, out: Path, node: str | None, seed: int, as_json: bool
) -> None:
    """Measure this machine, fit a profile, and write it with its residuals; scenarios name it as cluster.profile."""
    with refusing_bad_input():
        _refuse_idle_options(from_tables=bool(measured.tables))
        spec = checked_node(node, machine.device, from_tables=bool(measured.tables))
        page = out.with_suffix(".html")
        refuse_unwritable_files(out, page)
        if measured.tables:
            result = calibrate_tables(spec, measured, seed)
        else:
            result = calibrate_machine(spec, _request(machine, seed, out), measuring=measuring)
        line = _command_line(out, spec.name, machine, measured)
        write_profile(result.entry, out, line)
        with writing_to(out.parent):
            write_calibration_page(result, page, line)
    if as_json:
        click.echo(json.dumps(to_json(result.summary), indent=2))
    else:
        _print(result, open_console(), (out, page))


def _refuse_idle_options(*, from_tables: bool) -> None:
    """Raise ScenarioError for an option on the command line that does nothing beside the others."""
    rule = "with --from nothing is measured" if from_tables else "it belongs to --from, and there is no table"
    for name in ("device", "budget", "processes") if from_tables else ("system", "source"):
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ScenarioError(Origin(option=f"--{name}"), "", rule, "leave it out")


def _request(machine: MachineOptions, seed: int, out: Path) -> MachineRequest:
    return MachineRequest(
        device=machine.device,
        budget_s=budget_seconds(machine.budget),
        processes=machine.processes or max(2, num_cores()),
        seed=seed,
        folder=out.absolute().parent,
    )


def _command_line(out: Path, node: str, machine: MachineOptions, measured: MeasuredTables) -> str:
    """Return the command that makes this profile again, with the names of files alone."""
    words = ["simulate calibrate"]
    words += [f"--from {table.name}" for table in measured.tables] or [machine.words]
    words += [f"--system {measured.system}"] if measured.system else []
    words += [f"--source {measured.source!r}"] if measured.source else []
    return " ".join([*words, f"--node {node} --out {out.name}"])


def _print(result: Calibration, console: Console, written: Sequence[Path]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("measured against fitted")
    for words in ("points", "mean error", "half below", "9 of 10 below", "held out", "mean error there"):
        table.add_column(words, justify="right")
    for family, row in result.summary.residuals.items():
        cells = map(_percent, (row.mean, row.p50, row.p90))
        table.add_row(family, f"{row.points:,}", *cells, f"{row.held_out_points:,}", _percent(row.held_out_mean))
    console.print(table)
    sections = ", ".join(result.summary.fitted_sections)
    console.print(Text(f"fitted: {sections}; the other sections are those of the packaged profile"), soft_wrap=True)
    console.print(Text(f"written to {' and '.join(map(str, written))}"), soft_wrap=True)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else format_percent(fraction)
