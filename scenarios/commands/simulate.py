"""``simulate SCENARIO.yaml``: the main job."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import click
from rich.text import Text

from scenarios.commands.shared.options import json_option, out_option, scenario_argument, set_option
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
    help="Rows of the timeline: one per op, or one per task. Default: op; task for large plans.",
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
    fold: bool,
) -> None:
    """Simulate a scenario: step time, memory, and causes of waiting."""
    with refusing_bad_input(), collector_paused():
        loaded = load_scenario(scenario, overrides)
        if out is not None:
            refuse_unwritable(out)
        with _saying(f"Simulating {loaded.name}"):
            result = loaded.workload.simulate(loaded, detail=detail, fold=fold)
        if as_json and out is None:
            click.echo(json.dumps(result.as_json(), indent=2))
            return
        console = open_console()
        if out is None:  # the answer at once: what would help takes further simulations
            print_blocks(result.blocks(drawn=False), console)
        with _saying("Simulating what would help"):
            advice = loaded.workload.advise(loaded, result)
        if out is not None:
            with _saying(f"Writing {out}"), writing_to(out):
                result.write(out, advice)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
        return
    if out is not None:
        print_blocks(result.blocks(drawn=False), console)
    if closing := result.closing(advice):
        console.print()
        print_blocks(closing, console)
    print_written(out, console)


def _saying(words: str) -> AbstractContextManager[object]:
    """Show on a terminal the work that is going on."""
    terminal = open_console(stderr=True)
    return terminal.status(Text(words)) if terminal.is_terminal else nullcontext()
