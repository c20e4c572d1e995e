"""``simulate SCENARIO.yaml``: the main job."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import click
from rich.text import Text

from scenarios.commands.shared.options import json_option, out_option, scenario_argument, set_option
from scenarios.commands.shared.progress import simulating
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.workloads.loading import load_scenario
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
    with refusing_bad_input(), collector_paused():
        loaded = load_scenario(scenario, overrides)
        if out is not None:
            refuse_unwritable(out)
        with simulating(loaded.name) as announce:
            result = loaded.workload.simulate(loaded, detail=detail, fold=fold, announce=announce)
        console = open_console()
        if not as_json:  # the answer at once: what would help takes further simulations
            print_blocks(result.blocks(drawn=False), console)
            console.file.flush()
        level = advice or ("none" if as_json and out is None else "quick")
        if level != "none":
            with _saying("Simulating what would help"):
                result = loaded.workload.advised(result, level)
        if out is not None:
            with _saying(f"Writing {out}"), writing_to(out):
                result.write(out)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
        return
    if closing := result.closing():
        console.print()
        print_blocks(closing, console)
    print_written(out, console)


def _saying(words: str) -> AbstractContextManager[object]:
    """Show on a terminal the work that is going on."""
    terminal = open_console(stderr=True)
    return terminal.status(Text(words)) if terminal.is_terminal else nullcontext()
