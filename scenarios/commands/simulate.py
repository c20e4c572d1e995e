"""``simulate SCENARIO.yaml``: the main job."""

from pathlib import Path
from typing import Literal

import click

from scenarios.commands.shared.options import json_option, out_option, scenario_argument, set_option
from scenarios.commands.shared.progress import saying, simulating
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console import blocks, terminal
from scenarios.kept_memory import keep_freed_memory
from scenarios.results import folder
from scenarios.summaries.as_json import json_text
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.workload import refuse_without_plan
from sim.engine.running.collector import collector_paused


@click.command("simulate")
@scenario_argument
@set_option
@out_option
@json_option
@click.option(
    "--detail",
    type=click.Choice(["op", "task"]),
    help="Rows of the timeline: one per op, or one per task, of every micro-batch. Default: op, or task for large "
    "plans; what repeats once.",
)
@click.option(
    "--advice",
    type=click.Choice(["quick", "full", "none"]),
    help="Changes that are tried to find what would help: few seconds' worth, all, or none. Default: quick; none with "
    "--json alone.",
)
@click.option(
    "--fold/--no-fold", default=True, help="Simulate ranks and micro-batches that cannot differ once (the default)."
)
def command(  # click passes by name
    scenario: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    detail: Literal["op", "task"] | None,
    advice: Literal["quick", "full", "none"] | None,
    fold: bool,
) -> None:
    """Simulate a scenario: step time, memory, and causes of waiting."""
    keep_freed_memory()
    with refusing_bad_input(), collector_paused(freeze=True):
        loaded = load_scenario(scenario, overrides)
        refuse_without_plan(loaded.workload, "--detail" if detail else "", "" if fold else "--no-fold")
        if out is not None:
            folder.refuse_unwritable(out)
        with simulating(loaded.name) as announce:
            result = loaded.workload.simulate(loaded, detail=detail, fold=fold, announce=announce)
        if not as_json:  # the answer at once: what would help takes further simulations
            console = terminal.open_console()
            blocks.print_blocks(result.blocks(drawn=False), console)
            console.file.flush()
        level = advice or ("none" if as_json and out is None else "quick")
        if level != "none":
            with saying("Simulating what would help"):
                result = loaded.workload.advised(result, level)
        if out is not None:
            with saying(f"Writing {out}"), folder.writing_to(out):
                result.write(out)
        if as_json:
            click.echo(json_text(result.as_json()))
            return
        if closing := result.closing():
            console.print()
            blocks.print_blocks(closing, console)
        blocks.print_written(out, console)
