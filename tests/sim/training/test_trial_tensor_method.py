"""A second tensor-parallel method works in all builders, without a change to any of them."""

from typing import Any

import pytest

from sim.plan.checking.check import check
from sim.plan.words.op import Collective
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.tensor.registry import TENSOR_METHODS
from tests.sim.jobs import LLAMA, dense_plan
from tests.sim.replicated import Replicated

EXPERTS = LLAMA | {"experts": ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=32)}
JOBS: dict[str, dict[str, Any]] = {
    "pipeline": {"pp": 2, "m": 4, "schedule": "zb_h1"},
    "replicas": {"dp": 2, "zero_stage": 3, "recompute": "full"},
    "experts": {"dp": 2, "expert_degree": 2, "model": EXPERTS},
}


@pytest.mark.parametrize("name", JOBS)
def test_a_method_without_collectives_makes_plans_without_collectives_on_its_axis(name: str, monkeypatch: Any) -> None:
    """Made by its name, it builds plans that pass all checks, and its ranks only compute."""
    monkeypatch.setitem(TENSOR_METHODS, "replicated", lambda: Replicated)
    plan = dense_plan(tp=2, tensor_method="replicated", **JOBS[name])
    check(plan)
    assert plan.mesh.degree("tp_copy") == 2
    ops = [op for program in plan.programs for task in program.tasks.values() for op in task.ops]
    assert not [op.name for op in ops if isinstance(op, Collective) and "tp_copy" in op.axes]
