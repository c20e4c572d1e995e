"""``simulate export SCENARIO.yaml --out DIR``: the plan as Chakra execution traces."""

from pathlib import Path

import click

from scenarios.commands.shared.options import Folder, scenario_argument, set_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.errors import Origin, ScenarioError
from scenarios.results.files import all_or_none
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, refuse_many_ops
from sim.plan.errors import PlanError
from sim.replay.chakra_plan import chakra_trace
from traces.chakra.file import write_trace
from traces.chakra.schema import messages


@click.command("export")
@scenario_argument
@set_option
@click.option("--out", type=Folder(), metavar="DIR", required=True, help="Folder for PREFIX.RANK.et, a file per rank.")
def command(scenario: Path, overrides: tuple[str, ...], out: Path) -> None:
    """Write a scenario's step as Chakra execution traces, for ASTRA-sim and simulate replay."""
    with refusing_bad_input():
        messages()  # before any work: it refuses where the package is missing
        loaded = load_step(scenario, overrides).decided()
        plan = plan_of(loaded)
        refuse_many_ops(plan)
        refuse_unwritable(out)
        try:
            trace = chakra_trace(plan, loaded.pricing())
        except PlanError as error:
            rule, remedy = str(error), "use a schedule and a method with a barrier between steps"
            raise ScenarioError(Origin(file=str(scenario)), "", rule, remedy) from error
        with writing_to(out), all_or_none(out) as staging:
            write_trace(trace, staging, scenario.stem)
    click.echo(f"{len(trace.ranks):,} ranks, {sum(map(len, trace.ranks.values())):,} nodes written to {out}")
