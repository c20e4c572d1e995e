"""Options and arguments that several commands share."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from scenarios.library.shipped import found, found_recording

Bundle = TypeVar("Bundle", bound=Struct)


def bundling(kind: type[Bundle]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the parameters named as a record's fields as one of these, in front.

    So a command of many options takes what it hands on whole. Stands below the options; of several the upper one gives
    the first argument.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(*bundles: object, **parameters: object) -> None:
            bundle = kind(**{name: parameters.pop(name) for name in kind.__struct_fields__})
            command(*bundles, bundle, **parameters)

        return called

    return decorate


class NamedPath(click.ParamType[Path]):
    """A path; an empty one, as an unset variable of a shell gives, is refused: it would be the working directory."""

    name = "path"
    remedy = "name a file or a folder"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if not str(value):
            self.fail(f"the name is empty; {self.remedy}", param, ctx)
        return Path(str(value))


class Folder(NamedPath):
    """The name of a folder for results."""

    remedy = "name a directory, as in --out results"


class ProfileFile(NamedPath):
    """The name of a file for a profile."""

    remedy = "name a file, as in --out my-profile.yaml"


class RecordingPath(NamedPath):
    """The path of a recording, or the name of one that comes with the program."""

    name = "recording"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return found_recording(super().convert(value, param, ctx))


class ScenarioPath(click.ParamType[Path]):
    """The path of a scenario, or the name of one that comes with the program."""

    name = "scenario"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        del param, ctx
        return found(Path(str(value)))


scenario_argument = click.argument("scenario", type=ScenarioPath(), metavar="SCENARIO.yaml")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Put another value into the scenario; repeatable."
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 1_024), metavar="N", help="Processes that simulate; default one per core."
)
scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler whose workers simulate, as tcp://10.0.0.1:8786; not with --jobs.",
)
out_option = click.option(
    "--out",
    type=Folder(),
    metavar="DIR",
    help="Folder for report.html, summary.json, timeline.json.gz and timeline.parquet.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class Percentage(click.ParamType[float]):
    """Text such as ``10%``, read as a fraction."""

    name = "percentage"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the fraction."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if not text.endswith("%") or not 0 <= number < float("inf"):
            self.fail(f"{text!r} is not a percentage; write it as in 10%", param, ctx)
        return number / 100
