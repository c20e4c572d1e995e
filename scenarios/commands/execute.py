"""``simulate execute SCENARIO.yaml``: run the plan with torch."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from scenarios.calibration.request import budget_seconds
from scenarios.commands.shared.options import (
    NamedPath,
    bundling,
    json_option,
    out_option,
    scenario_argument,
    set_option,
)
from scenarios.commands.shared.progress import measuring
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.blocks import print_blocks, print_written
from scenarios.console.terminal import open_console
from scenarios.results.folder import refuse_unwritable, refuse_unwritable_file
from scenarios.workloads.executing import NATIVE, REPEATS, STEPS, TIMEOUT, ExecutionOptions
from scenarios.workloads.loading import load_scenario


@click.command("execute")
@scenario_argument
@set_option
@out_option
@json_option
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cpu: one process per rank, over gloo; cuda: one GPU per rank, over NCCL.",
)
@click.option("--check", is_flag=True, help="Compare loss, gradients and parameters with a dense autograd reference.")
@click.option(
    "--steps",
    type=click.IntRange(*STEPS),
    default=4,
    show_default=True,
    help="Steps to run: the first warms up, the median of the others (the last nine) is timed; --check compares the "
    "result of all.",
)
@click.option(
    "--timing",
    type=click.Choice(["op", "step"]),
    default="op",
    show_default=True,
    help="op: fence and time every op; step: only the step.",
)
@click.option(
    "--collectives",
    default=NATIVE,
    show_default=True,
    metavar="WAY",
    help="native: the library's own; explicit: step by step over messages, by the first algorithm of each kind, "
    "explicit:ring by that one, explicit:all_reduce=tree,all_gather=bruck by one per kind.",
)
@click.option(
    "--timeout",
    default=TIMEOUT,
    show_default=True,
    metavar="TIME",
    help="End the run if a rank does not answer for this time, as in 2 min. A computing rank answers.",
)
@click.option(
    "--calibrate",
    metavar="TIME",
    help="Measure this machine for so long, as in 20 s, run the plan now and then between the measurements, and "
    "compare with a simulation of this machine; --out gets its profile, too.",
)
@click.option(
    "--repeats",
    type=click.IntRange(*REPEATS),
    default=1,
    show_default=True,
    help="Job mixes: run the jobs so often, and report the run with the median completion time.",
)
@click.option(
    "--record-routing",
    type=NamedPath(),
    metavar="FILE",
    help="Write how many tokens chose each expert in the last step, as CSV or Parquet.",
)
@bundling(ExecutionOptions)
def command(
    options: ExecutionOptions, scenario: Path, overrides: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Run the same plan with torch: in local processes or, if RANK is set, as one rank of a running job."""
    with refusing_bad_input():
        loaded = load_scenario(scenario, overrides)
        if out is not None:
            refuse_unwritable(out)
        if options.record_routing is not None:
            refuse_unwritable_file(options.record_routing, "--record-routing")
        with _measuring(options.calibrate):
            executed = loaded.workload.execute(loaded, options)
        if executed is not None and out is not None:
            executed.write(out)
    if executed is None:  # this process is one of several ranks, and not the one that reports
        return
    if as_json:
        click.echo(json.dumps(executed.as_json(), indent=2))
    else:
        console = open_console()
        print_blocks(executed.blocks(), console)
        print_written(out, console)
        print_written(options.record_routing, console)
    if not executed.passed:
        sys.exit(1)


def _measuring(calibrate: str | None) -> AbstractContextManager[None]:
    """Return what shows on a terminal how far the measurements have gone, if there are any."""
    return nullcontext() if calibrate is None else measuring(budget_seconds(calibrate, "--calibrate"))
