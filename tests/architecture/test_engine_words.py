"""The engine knows facts about tasks, and no part of a training step by its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.plan.words.program import Phase, Task
from tests.sim.jobs import GPT, dense_plan

NAMES = {name for phase in Phase for name in (phase.name, str(phase))} - {"send", "recv"}
"""Words of training. A send and a receive are ops of any plan."""


def offences(text: str) -> Iterator[str]:
    """Yield where a file asks for a phase, or names one in code; docstrings are not code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (f"imports {alias.name}" for alias in node.names if alias.name == "Phase")
        elif isinstance(node, ast.Attribute) and (node.attr == "phase" or node.attr in NAMES):
            yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield f"line {node.lineno}: {node.value!r}"


def test_engine_names_no_phase(root: Path) -> None:
    """No file of the engine imports Phase, reads a task's phase, or compares a text with a phase's name."""
    files = sorted((root / "sim" / "engine").rglob("*.py"))
    assert len(files) > 40
    assert {str(file): found for file in files if (found := list(offences(file.read_text(encoding="utf-8"))))} == {}


@pytest.mark.parametrize(
    "offence",
    ["from sim.plan.words.program import Phase", "task.phase", "Phase.BACKWARD", "kind == 'optimizer'"],
)
def test_words_of_training_are_found(offence: str) -> None:
    """Each way to ask for a phase by its name is an offence."""
    assert list(offences(offence))


def test_traits_of_a_training_step_pair_up() -> None:
    """On every stage of a training step each micro-batch's stay is opened once and closed once."""
    plan = dense_plan(model=GPT, pp=2, m=4)
    for program in plan.programs:
        tasks: list[Task] = [program.tasks[call.task] for call in program.calls]
        opening, closing = ([t for t in tasks if t.traits.opens], [t for t in tasks if t.traits.closes])
        assert len(opening) == len(closing) == 4
        assert all(task.traits.coalesces and task.traits.launched for task in (*opening, *closing))
