"""Recomputation chosen stage by stage: every stage's passes are those of a plan in which all stages choose alike."""

from itertools import product

import pytest

from sim.plan.words.program import Plan
from tests.sim.jobs import GPT, dense_plan

MODES = ("none", "selective", "full")


def op_names(plan: Plan, stage: int) -> list[str]:
    """Return the names of the ops of a stage's forward and backward."""
    tasks = {name: task for program in plan.programs for name, task in program.tasks.items()}
    return [op.name for phase in ("forward", "backward") for op in tasks[f"{phase}.{stage}"].ops]


@pytest.mark.parametrize("modes", list(product(MODES, repeat=2)))
def test_stages_recompute_what_they_are_told(modes: tuple[str, str]) -> None:
    """Each stage has the ops that it has where all stages recompute as it does, whatever the training says."""
    keys = {"pp": 2, "m": 4, "model": GPT | {"num_layers": 4}}
    plan = dense_plan(**keys, recompute="full", recompute_per_stage=modes)
    for stage, mode in enumerate(modes):
        assert op_names(plan, stage) == op_names(dense_plan(**keys, recompute=mode), stage)


def test_modes_differ() -> None:
    """More recomputation is more ops in a stage's backward."""
    counts = [len(op_names(dense_plan(pp=2, m=4, recompute=mode), 1)) for mode in MODES]
    assert counts[0] < counts[1] < counts[2]
