"""``simulate plan SCENARIO.yaml``: search for the best strategy."""

import json
from pathlib import Path
from typing import get_args

import click

from scenarios.commands.shared.options import (
    Folder,
    bundling,
    jobs_option,
    json_option,
    scenario_argument,
    scheduler_option,
    set_option,
)
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.planning.files import write_plan
from scenarios.planning.page import plan_blocks
from scenarios.planning.request import Goal, Planner, Request
from scenarios.planning.search import Found, search
from scenarios.planning.sizing import sized
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.sweep.workers import available_cores, workers_at
from scenarios.workloads.workload import Outcome


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of nodes, separated by commas."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and 1 <= int(part) <= 100_000 for part in parts):
            self.fail(f"{value!r} is not a list of numbers of nodes, as 4,8,16", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command("plan")
@scenario_argument
@set_option
@click.option("--objective", "goal", type=click.Choice(get_args(Goal)), default="time", help="What is to be best.")
@click.option(
    "--planner",
    type=click.Choice(get_args(Planner)),
    default="auto",
    help="auto: estimate all strategies, simulate the best; exhaustive: simulate all; others: as published.",
)
@click.option(
    "--proofs",
    "num_proofs",
    type=click.IntRange(1, 1_000),
    default=4,
    metavar="N",
    help="Strategies to simulate at least, and half as many of the front; default 4.",
)
@click.option(
    "--num-nodes",
    type=NodeCounts(),
    default=(),
    metavar="N,N",
    help="Sizes of clusters to search, as 4,8,16; default the scenario's.",
)
@jobs_option
@scheduler_option
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html, plan.json and best.yaml.")
@json_option
@bundling(Request)
def command(
    request: Request, scenario: Path, overrides: tuple[str, ...], jobs: int | None, scheduler: str | None,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Search for the best strategy: keys that are left out or `auto` are searched, all others are fixed.

    Of a service, seek the fewest replicas that meet `service.slo`.
    """
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        found: Found | Outcome | None = sized(scenario, overrides, request)
        if found is None:
            with workers_at(scheduler, jobs)(jobs or available_cores()) as workers:
                found = search(scenario, overrides, request, workers)
        if out is not None:
            with writing_to(out):
                if isinstance(found, Found):
                    write_plan(found, out)
                else:
                    found.write(out)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        return
    console = open_console(plain_width=1_000)
    print_blocks(plan_blocks(found.summary) if isinstance(found, Found) else found.blocks(drawn=False), console)
    print_written(out, console)
