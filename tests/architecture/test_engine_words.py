"""The engine knows facts about tasks, and no part of a training step by its name."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from sim.plan.words.program import Phase, Task
from tests.sim.jobs import GPT, dense_plan

NAMES = {name for phase in Phase for name in (phase.name, str(phase))} - {"send", "recv"}
"""Words of training. A send and a receive are ops of any plan."""


def offences(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield where code asks for a phase, or names one; docstrings are not code."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (f"imports {alias.name}" for alias in node.names if alias.name == "Phase")
        elif isinstance(node, ast.Attribute) and (node.attr == "phase" or node.attr in NAMES):
            yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield f"line {node.lineno}: {node.value!r}"


def test_engine_names_no_phase(modules) -> None:
    """No file of the engine imports Phase, reads a task's phase, or compares a text with a phase's name."""
    engine = [module for module in modules if module.name.startswith("sim/engine/")]
    assert len(engine) > 40
    assert {module.name: found for module in engine if (found := list(offences(module.nodes)))} == {}


@pytest.mark.parametrize(
    "offence",
    ["from sim.plan.words.program import Phase", "task.phase", "Phase.BACKWARD", "kind == 'optimizer'"],
)
def test_words_of_training_are_found(offence: str) -> None:
    """Each way to ask for a phase by its name is an offence."""
    assert list(offences(ast.walk(ast.parse(offence))))


def test_traits_of_a_training_step_pair_up() -> None:
    """On every stage of a training step each micro-batch's stay is opened once and closed once."""
    plan = dense_plan(model=GPT, pp=2, m=4)
    for program in plan.programs:
        tasks: list[Task] = [program.tasks[call.task] for call in program.calls]
        opening, closing = ([t for t in tasks if t.traits.opens], [t for t in tasks if t.traits.closes])
        assert len(opening) == len(closing) == 4
        assert all(task.traits.coalesces and task.traits.launched for task in (*opening, *closing))
