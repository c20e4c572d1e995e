"""``simulate schedule``: the order of a scenario's forwards and backwards."""

from pathlib import Path

import click

from scenarios.commands.options import scenario_argument, set_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.loader import load_scenario
from sim.training.errors import SpecError
from sim.training.pipeline.actions import format_orders
from sim.training.pipeline.schedules import orders
from sim.training.spec import TextbookTraining


@click.command("schedule")
@scenario_argument
@set_option
def command(scenario: Path, overrides: tuple[str, ...]) -> None:
    """Print the pipeline schedule as CSV, a row of actions per rank; torch and schedule: custom read it."""
    with refusing_bad_input():
        job = load_scenario(scenario, overrides).job
        pipeline = job.pipeline if isinstance(job, TextbookTraining) else job.parallel.pipeline
        if pipeline.num_copies > 1:
            rule = f"{pipeline.schedule} trains two copies of the model, for which the format has no words"
            raise SpecError("parallel.pipeline.schedule", rule, "choose another schedule")
        times = job.times if isinstance(job, TextbookTraining) else None
        text = format_orders(orders(pipeline, job.num_microbatches, times))
    click.echo(text, nl=False)
