"""Outside the folder of a kind of work, nobody asks of which kind a scenario or a job is."""

import ast
import re
from collections.abc import Iterable

import pytest

from scenarios.workloads.registry import KINDS as REGISTERED

KINDS = tuple(f"scenarios/workloads/{kind}/" for kind in ("steps", *(kind.name for kind in REGISTERED)))
"""The folders of the kinds of work, and of what two of them share."""
JOBS = "sim/training/"
"""Where jobs are made and built."""
ASKED = re.compile(r"(Training|TrainingJob|Scenario|Workload|TrainingStep|TextbookSchedule)$")
"""Classes that say of which kind something is."""


def kinds_asked(nodes: Iterable[ast.AST]) -> list[int]:
    """Return the lines where ``isinstance``, ``type`` or a class pattern asks for the kind of a scenario or a job."""
    lines = []
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"isinstance", "issubclass"}
        ):
            names = [n for n in ast.walk(node.args[1]) if isinstance(n, ast.Name | ast.Attribute)]
            asked = (n.id if isinstance(n, ast.Name) else n.attr for n in names)
            lines += [node.lineno for name in asked if ASKED.search(name)]
        if isinstance(node, ast.MatchClass) and ASKED.search(ast.unparse(node.cls)):
            lines.append(node.cls.lineno)
        if isinstance(node, ast.Compare) and "workload.name" in ast.unparse(node):
            lines.append(node.lineno)
    return lines


def test_nobody_asks_for_the_kind_of_work(modules) -> None:
    """Commands, pages, sweeps and results go through the kind's own object."""
    outside = [m for m in modules if m.in_room and not m.name.startswith((*KINDS, JOBS))]
    allowed = {"scenarios/api.py": 1}  # ``load`` takes a scenario or where it is to be found
    found = {m.name: len(lines) for m in outside if (lines := kinds_asked(m.nodes))}
    assert found == allowed


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(job, DenseTraining)",
        "isinstance(scenario.job, TextbookTraining | spec.OpenTraining)",
        "match job:\n    case TrainingJob(): pass",
        "if scenario.workload.name == 'training': pass",
        "isinstance(scenario, (StepScenario, str))",
    ],
)
def test_questions_are_found(code: str) -> None:
    """The test above sees each way to ask."""
    assert kinds_asked(ast.walk(ast.parse(code))) != []
