"""The option that chooses steps of a profile."""

import re
from collections.abc import Callable
from typing import Any

import click

from traces.kineto.rank import StepWindow

ALL = "all"
COMPLETE = "complete"


class Steps(click.ParamType[str]):
    """``all``, ``complete``, a number, or two: ``4-6``."""

    name = "steps"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, once it is known to be one of these."""
        text = str(value).strip()
        numbers = [int(word) for word in re.findall(r"\d+", text)]
        if text not in {ALL, COMPLETE} and not (
            re.fullmatch(r"\d{1,9}(-\d{1,9})?", text) and numbers == sorted(numbers)
        ):
            self.fail(f"{text!r} is no choice of steps; write {ALL}, {COMPLETE}, 4 or 4-6", param, ctx)
        return text


def steps_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--steps``."""
    return click.option(
        "--steps",
        type=Steps(),
        default=COMPLETE,
        show_default=True,
        metavar="all|complete|N|N-M",
        help="Use the device work of these steps (ProfilerStep); complete: all steps but the last of several.",
    )(command)


def window_of(steps: str) -> StepWindow | None:
    """Return the steps in question, None for everything."""
    if steps == ALL:
        return None
    if steps == COMPLETE:
        return StepWindow()
    numbers = [int(word) for word in steps.split("-")]
    return StepWindow(numbers[0], numbers[-1])
