"""``simulate schedule``: the order of a scenario's forwards and backwards, as text or as a picture."""

from pathlib import Path

import click

from scenarios.commands.shared.options import NamedPath, scenario_argument, set_option
from scenarios.commands.shared.pictures import refuse_suffix, written
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.report.pictures.picture_file import SUFFIXES, write_picture
from scenarios.report.slots.slot_figure import SlotDrawing
from scenarios.workloads.loading import load_scenario
from traces.files import replacing


@click.command("schedule")
@scenario_argument
@set_option
@click.option(
    "--out",
    type=NamedPath(),
    metavar="FILE",
    help="Write the schedule (.csv), or draw its slots (.svg, .png, .pdf).",
)
def command(scenario: Path, overrides: tuple[str, ...], out: Path | None) -> None:
    """Print the pipeline schedule as CSV, a row of actions per rank, for torch and for schedule: custom."""
    with refusing_bad_input():
        if out is not None:
            refuse_suffix(out, (".csv", *SUFFIXES), "schedule")
        loaded = load_scenario(scenario, overrides)
        shown = loaded.workload.schedule(loaded) if out is not None and out.suffix.lower() != ".csv" else None
        if out is not None and shown is not None:
            drawing = SlotDrawing(shown.slots, f"{loaded.name}\n{shown.words}")
            written(out, lambda: write_picture([drawing], out))
        else:
            text = loaded.workload.schedule_text(loaded)
            if out is None:
                click.echo(text, nl=False)
                return
            _write_text(text, out)
    click.echo(f"written to {out}")


def _write_text(text: str, out: Path) -> None:
    def write() -> None:
        with replacing(out) as temporary:
            temporary.write_text(text, encoding="utf-8")

    written(out, write, "schedule")
