"""``simulate sweep SCENARIO.yaml``: many runs of one scenario, one table."""

import json
from contextlib import ExitStack
from pathlib import Path

import click

from scenarios.commands.shared.options import Folder, jobs_option, json_option, scenario_argument, scheduler_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.results.folder import refuse_unwritable, writing_to
from scenarios.sweep.console import print_sweep, progress
from scenarios.sweep.files import write_sweep
from scenarios.sweep.kept import kept_points
from scenarios.sweep.run import prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import available_cores, workers_at

PIPE_WIDTH = 1_000
"""Columns where there is no terminal: a line per point, for other programs."""


@click.command("sweep")
@scenario_argument
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=A,B,...",
    help="Values of a key, as YAML; repeatable. Lists: [1,2],[2,1]. Put text with a comma in quotes.",
)
@jobs_option
@scheduler_option
@click.option("--out", type=Folder(), metavar="DIR", help="Folder for report.html, sweep.json, sweep.csv, .parquet.")
@click.option("--resume", type=Folder(), metavar="DIR", help="Folder that keeps points as they end; go on from them.")
@json_option
def command(
    scenario: Path, options: tuple[str, ...], jobs: int | None, scheduler: str | None, out: Path | None,
    resume: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate all combinations of values of several keys; one table, the best first."""
    with refusing_bad_input():
        job = prepare(scenario, read_settings(options))
        if out is not None:
            refuse_unwritable(out)
        workers = workers_at(scheduler, jobs, click.get_current_context().obj or ())
        with ExitStack() as opened:
            kept = None if resume is None else opened.enter_context(kept_points(resume, job))
            done, keep = ({}, None) if kept is None else (kept.done, kept.add)
            tick = opened.enter_context(progress(len(job.points), f"Simulating {job.name}"))
            sweep = run(
                job, workers, jobs or available_cores(), with_pictures=out is not None and kept is None, tick=tick,
                done=done, keep=keep,
            )  # fmt: skip
        if out is not None:
            with writing_to(out):
                write_sweep(sweep, out)
    if as_json:
        click.echo(json.dumps(sweep.as_json(), indent=2))
    else:
        print_sweep(sweep.summary, open_console(plain_width=PIPE_WIDTH), out)
