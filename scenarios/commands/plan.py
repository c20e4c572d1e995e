"""``simulate plan SCENARIO.yaml``: search for the best strategy."""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import get_args

import click
from msgspec import Struct

from scenarios.commands.shared.options import (
    Folder,
    bundling,
    jobs_option,
    json_option,
    scenario_argument,
    scheduler_option,
    set_option,
)
from scenarios.commands.shared.progress import searching
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.planning.files import write_plan
from scenarios.planning.kept import kept_proofs
from scenarios.planning.page import plan_blocks
from scenarios.planning.request import MOST_NODES, PROOFS, Goal, Planner, Request
from scenarios.planning.resources import BUDGETS_S, Resources
from scenarios.planning.search import Found, search
from scenarios.planning.sizing import sized
from scenarios.reading.option import option_seconds
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.sweep.workers import available_cores, workers_at
from scenarios.workloads.workload import Outcome
from sim.planner.space import SCHEDULES, SEARCHED
from sim.training.pipeline.rules import Schedule


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of nodes, separated by commas."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST_NODES for part in parts):
            self.fail(f"{value!r} is not a list of numbers of nodes, as 4,8,16", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


class Schedules(click.ParamType[tuple[Schedule, ...]]):
    """Pipeline schedules, separated by commas."""

    name = "names"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Schedule, ...]:
        """Return the schedules, in the order in which a search has them."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if unknown := [part for part in parts if part not in SCHEDULES]:
            self.fail(f"{unknown[0]!r} is none of the schedules that are searched: {', '.join(SCHEDULES)}", param, ctx)
        return tuple(name for name in SCHEDULES if name in parts)


class Running(Struct, frozen=True):
    """The options that say how a search runs."""

    budget: str | None
    resume: Path | None
    jobs: int | None
    scheduler: str | None

    @property
    def is_limited(self) -> bool:
        """Return whether a search ends early, or keeps its simulations."""
        return self.budget is not None or self.resume is not None

    @contextmanager
    def resources(self, words: str) -> Iterator[Resources]:
        """Yield what the search may use, from now on. Raises ScenarioError for what is wrong with an option."""
        budget_s = None if self.budget is None else option_seconds("--budget", self.budget, BUDGETS_S, "a search takes")
        ends_at_s = math.inf if budget_s is None else monotonic() + budget_s
        with ExitStack() as opened:
            kept = None if self.resume is None else opened.enter_context(kept_proofs(self.resume))
            tick = opened.enter_context(searching(words, budget_s))
            open_workers = workers_at(self.scheduler, self.jobs, click.get_current_context().obj or ())
            workers = opened.enter_context(open_workers(self.jobs or available_cores()))
            yield Resources(workers, kept, ends_at_s, tick)


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
    type=click.IntRange(*PROOFS),
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
@click.option(
    "--schedules",
    type=Schedules(),
    default=SEARCHED,
    metavar="NAME,NAME",
    help="Pipeline schedules to search, as 1f1b,interleaved_1f1b; default all but chimera, gpipe, aiao, zb_auto.",
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also search with less and more memory, and on a slower and a faster network.",
)
@click.option("--budget", metavar="TIME", help="End after this time, as 60 s; the best plan by then is the answer.")
@click.option("--resume", type=Folder(), metavar="DIR", help="Folder that keeps simulations; none is run again.")
@jobs_option
@scheduler_option
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html, plan.json and best.yaml.")
@json_option
@bundling(Request)
@bundling(Running)
def command(
    request: Request, running: Running, scenario: Path, overrides: tuple[str, ...], out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Search for the best strategy: keys that are left out or `auto` are searched, all others are fixed.

    Of a service, seek the fewest replicas that meet `service.slo`.
    """
    with refusing_bad_input():
        if out is not None:
            refuse_unwritable(out)
        found: Found | Outcome | None = sized(
            scenario, overrides, has_options=request != Request() or running.is_limited
        )
        if found is None:
            with running.resources(f"Searching plans of {scenario.name}") as resources:
                found = search(scenario, overrides, request, resources)
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
