"""``simulate schedule``: the order of a scenario's forwards and backwards, as text or as a picture."""

from pathlib import Path

import click

from scenarios.commands.options import NamedPath, scenario_argument, set_option
from scenarios.commands.pictures import refuse_suffix, written
from scenarios.commands.refusals import refusing_bad_input
from scenarios.reading.located import located
from scenarios.report.pictures.picture_file import SUFFIXES, write_picture
from scenarios.report.slots.slot_figure import SlotDrawing
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.steps.schedule import schedule_text, schedule_words, slots_of
from traces.files import replacing


@click.command("schedule")
@scenario_argument
@set_option
@click.option(
    "--out",
    type=NamedPath(),
    metavar="FILE",
    help="Write it: .csv, or draw its slots: .svg, .png, .pdf.",
)
def command(scenario: Path, overrides: tuple[str, ...], out: Path | None) -> None:
    """Print the pipeline schedule as CSV, a row of actions per rank; torch and schedule: custom read it."""
    with refusing_bad_input():
        if out is not None:
            refuse_suffix(out, (".csv", *SUFFIXES), "schedule")
        loaded = load_step(scenario, overrides)
        if out is None:
            click.echo(_text(loaded), nl=False)
            return
        if out.suffix.lower() == ".csv":
            _write_text(_text(loaded), out)
        else:
            drawing = SlotDrawing(slots_of(loaded), f"{loaded.name}\n{schedule_words(loaded)}")
            written(out, lambda: write_picture([drawing], out))
    click.echo(f"written to {out}")


def _text(scenario: StepScenario) -> str:
    with located(scenario.document):
        return schedule_text(scenario)


def _write_text(text: str, out: Path) -> None:
    def write() -> None:
        with replacing(out) as temporary:
            temporary.write_text(text, encoding="utf-8")

    written(out, write, "schedule")
