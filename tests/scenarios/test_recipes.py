"""docs/recipes.md: every command runs, and prints what the page says.

The two commands that calibrate this machine are run, with less time, by the test of calibration.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from docs.run_blocks import Command, run_steps, steps_of

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
CALIBRATED = "this-machine.yaml"


@pytest.fixture(autouse=True)
def short_advice() -> None:
    """Leave quick advice the time that it has."""


def beginnings(lines: Sequence[str]) -> list[str]:
    """Return the first word of each line; the second line of a long one has none."""
    return [line.split()[0] for line in lines if line.strip() and not line.startswith(" ")]


def test_every_command_prints_what_the_page_says() -> None:
    """Line by line; of an execution, whose times differ from machine to machine, the begin of each line."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'meshtwin[torch]'")
    text = PAGE.read_text(encoding="utf-8")
    found = list(run_steps(text, leave_out=CALIBRATED))
    for command, lines in found:
        if command.is_measured:
            assert beginnings(lines) == beginnings(command.shown), command.line
        else:
            assert lines == command.shown, command.line
    left_out = [step for step in steps_of(text) if isinstance(step, Command) and CALIBRATED in step.line]
    assert len(left_out) == 2
    assert all(command.is_measured for command in left_out)


def test_each_of_the_ten_tasks_has_commands() -> None:
    """Every heading of the page has a block that runs."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) == 10
    assert [text.splitlines()[0] for text in sections if not any(isinstance(s, Command) for s in steps_of(text))] == []
