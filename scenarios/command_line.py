"""The ``simulate`` command line: finds the command, and imports nothing that it does not need.

``simulate SCENARIO.yaml`` is the main job, so an argument that names no command is taken as a scenario.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from scenarios.console.streams import safe_streams
from scenarios.errors import nearest
from scenarios.library.shipped import found, near_scenario
from scenarios.stopping import ended_by_signals
from scenarios.version import VERSION
from sim.engine.running.collector import collector_paused

DEFAULT: Final = "simulate"

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "simulate": ("simulate", "Simulate a scenario. This is the default command; its name may be left out."),
    "execute": ("execute", "Run the same plan with torch on this machine, or join a running job."),
    "sweep": ("sweep", "Simulate all combinations of values of several keys; one table, the best first."),
    "plan": ("plan", "Search for the best strategy: keys that are left out or `auto` are searched, the others fixed."),
    "compare": ("recorded.compare", "Lay two timelines side by side."),
    "trace": ("recorded.trace", "Summarise traces of the PyTorch profiler: time per rank, kernels, collectives."),
    "replay": (
        "recorded.replay",
        "Run a recorded profile again at other speeds: what if the network were twice as fast?",
    ),
    "export": ("recorded.export", "Write a scenario's step as Chakra execution traces, for other simulators."),
    "fit": ("measured.fit", "Fit constants of a framework or a profile to measured step times."),
    "spread": (
        "measured.spread",
        "Write the errors of a profile into it, from measured kernels, collectives and steps.",
    ),
    "validate": ("measured.validate", "Predict published measurements; fail if errors exceed their thresholds."),
    "schedule": ("schedule", "Print a scenario's pipeline schedule as CSV, a row of actions per rank, or draw it."),
    "schema": ("schema", "Print the JSON Schema of scenario files, for editors."),
    "list": (
        "listing",
        "List kinds of work, scenarios, nodes, model presets, schedules, kernels, ...",
    ),
    "show": ("show", "Show a cluster's links and bandwidths, and a scenario's schedule slot by slot; or draw them."),
    "calibrate": ("measured.calibrate", "Fit a profile to measurements of this machine, or to measured tables."),
    "residuals": ("measured.residuals", "Compare a profile with measured kernels and collectives, without fitting."),
    "new": ("new", "Write a commented starter file."),
}
"""Command name to module in scenarios/commands (its ``command`` is run) and one line of help."""

_WITH_WORKERS: Final = ("plan", "sweep")
_EXTRA: Final = r"(?s)Got unexpected extra arguments? \((.*)\)\.?"
_SETTING: Final = r"[a-z_.0-9]+=\S+"

HELP: Final = """How long will this training step take on that cluster, will it fit, and what is it waiting for?

\b
simulate SCENARIO.yaml [--set key=value ...] [--out DIR] [--json] [--advice quick|full|none] ...
  --set KEY=VALUE   put another value into the scenario, e.g. --set parallel.tensor.degree=4
  --out DIR         write report.html, summary.json, timeline.json.gz (Perfetto) and timeline.parquet there
  --json            print the summary as JSON instead of the table
  --advice          changes that are tried: a few seconds' worth (quick, the default), all (full), or none
  --detail          op: one row per op of every micro-batch in the timeline; task: one per task
                    (default: by plan size, and what repeats once)
  --no-fold         simulate every rank and every micro-batch, also those that cannot differ
"""


class LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, importing its module."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        with collector_paused(freeze=True):  # what an import makes stays
            command: click.Command = import_module(f"scenarios.commands.{COMMANDS[cmd_name][0]}").command
        return command

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line. All that it prints, messages of errors too, is safe for a terminal."""
        with safe_streams():
            return super().main(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and write out all that it printed while an error can still be told."""
        try:
            result = super().invoke(ctx)
        except click.UsageError as error:
            if remedy := _extra_remedy(error.message):
                raise click.UsageError(f"{error.message.rstrip('.')};\n    {remedy}", error.ctx) from error
            raise
        if sys.stdout is not None:  # None: it was closed before the program began
            sys.stdout.flush()
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the main command's name before arguments that begin with none."""
        own = {"--help", "-h", "--version"}
        if args and args[0] not in COMMANDS and args[0] not in own:
            _refuse_mistyped_command(args[0])
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def _extra_remedy(message: str) -> str:
    """Return what to write for one argument too many, a forgotten --set or a value with a blank; else nothing."""
    found = re.fullmatch(_EXTRA, message)
    if found is None:
        return ""
    setting = re.match(_SETTING, found[1])
    return f"write --set {setting[0]}" if setting else "put a value that holds a blank into quotes"


def _refuse_mistyped_command(word: str) -> None:
    """Raise UsageError for a word that is no command, no option and does not look like a file name."""
    looks_like_file = Path(word).suffix or "/" in word or "\\" in word
    if word.startswith("-") or looks_like_file or _exists(found(Path(word))):
        return
    close = nearest(word, COMMANDS)
    try:
        stems = {path.stem: str(path) for path in sorted(Path().glob("*.yaml"))}
    except OSError:
        stems = {}
    near_file = stems.get(nearest(word, stems), "") or near_scenario(Path(word))
    hints = [f"the command {close}" if close else "", f"the scenario {near_file}" if near_file else ""]
    meant = " or ".join(hint for hint in hints if hint)
    question = f"did you mean {meant}? " if meant else ""
    message = f"{word!r} is neither a command nor a scenario file;\n    {question}commands: {', '.join(COMMANDS)}"
    raise click.UsageError(message)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a file name, or with a NUL character
        return False


@click.group(
    cls=LazyGroup,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    options_metavar="",
    subcommand_metavar="SCENARIO.yaml | COMMAND [ARGS]...",
)
@click.version_option(VERSION, prog_name="simulate")
def group() -> None:
    """Do nothing: the commands act."""


def run(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code; 2 where standard output takes nothing (a full disk, say)."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each further one spins when it starts, and has nothing to do
    with safe_streams():
        try:
            with ended_by_signals():
                ahead = _imported_ahead(sys.argv[1:]) if args is None else ()
                group.main(args=list(args) if args is not None else None, prog_name="simulate", obj=ahead)
        except OSError as error:
            _report(error)
            sys.exit(2)
        finally:
            gc.freeze()  # the process ends: all that still lives needs no last walk of the cycle collector


def _imported_ahead(args: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that worker processes will find imported, from now on, beside this process's own imports.

    None where another program calls the command line: its process has one server, for whatever it forks first.
    """
    if not args or args[0] not in _WITH_WORKERS:
        return ()
    found: tuple[str, ...] = import_module("scenarios.sweep.ahead").import_ahead_of(args)
    return found


def _report(error: OSError) -> None:
    """Print the file, or standard output, that the system refuses, with its reason."""
    reason = (error.strerror or str(error)).lower()
    if error.filename is not None:
        click.echo(f"error: {os.fsdecode(error.filename)}: {reason};\n    check its name and its permissions", err=True)
        return
    click.echo(f"error: standard output: {reason};\n    write to another place", err=True)
    with suppress(OSError):
        sys.stdout.close()  # what it still holds cannot be written either
