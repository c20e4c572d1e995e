"""``simulate plan SCENARIO.yaml``: search for the best strategy."""

import json
from pathlib import Path
from typing import get_args

import click

from scenarios.commands.shared.options import Folder, jobs_option, json_option, scenario_argument, set_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.planning.files import write_plan
from scenarios.planning.page import plan_blocks
from scenarios.planning.search import Planner, Request, search
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.sweep.workers import available_cores, local_workers
from sim.planner.trust import Objective


@click.command("plan")
@scenario_argument
@set_option
@click.option("--objective", type=click.Choice(["time", "memory"]), default="time", help="What is to be least.")
@click.option(
    "--planner",
    type=click.Choice(get_args(Planner)),
    default="auto",
    help="auto: estimate all strategies, simulate the best; exhaustive: simulate all; others: as published.",
)
@click.option(
    "--proofs",
    type=click.IntRange(1, 1_000),
    default=4,
    metavar="N",
    help="Strategies to simulate at least, and half as many of the front; default 4.",
)
@jobs_option
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html, plan.json and best.yaml.")
@json_option
def command(
    scenario: Path, overrides: tuple[str, ...], objective: Objective, planner: Planner, proofs: int, jobs: int | None,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Search for the best strategy: keys that are left out or `auto` are searched, all others are fixed."""
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        with local_workers(jobs or available_cores()) as workers:
            found = search(scenario, overrides, Request(objective, planner, proofs), workers)
        if out is not None:
            with writing_to(out):
                write_plan(found, out)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        return
    console = open_console(plain_width=1_000)
    print_blocks(plan_blocks(found.summary), console)
    print_written(out, console)
