"""Split backwards, several copies and V placements of a real transformer."""

from typing import Any

import pytest

from sim.engine.simulate import simulate
from sim.plan.check import check
from sim.plan.op import Collective, Compute
from sim.plan.program import Plan
from sim.training.pipeline.split import split_backward
from tests.sim.jobs import GPT, LLAMA, dense_plan, op_times, pricing_on
from tests.sim.test_textbook_schedules import peaks

V_SHAPE = {"schedule": "zb_v", "virtual_stages": 2, "pp": 2, "m": 4}
SPLIT = [
    {"schedule": "zb_h1", "pp": 4, "m": 6},
    {"schedule": "zb_h2", "pp": 2, "m": 4, "tp": 2, "sequence_parallel": True, "recompute": "full"},
    V_SHAPE,
    V_SHAPE | {"tp": 2, "dp": 2, "model": LLAMA},
    {"schedule": "dualpipe", "pp": 2, "m": 6, "dp": 2},
]


def kernels(plan: Plan, task: str) -> set[str]:
    """Return the kernels of a kind of task over all programs."""
    return {
        op.kernel
        for program in plan.programs
        for name, found in program.tasks.items()
        if name.split(".")[0] == task
        for op in found.ops
        if isinstance(op, Compute)
    }


@pytest.mark.parametrize("keys", SPLIT, ids=lambda keys: keys["schedule"])
def test_parts_of_a_backward_hold_what_their_names_say(keys: dict[str, Any]) -> None:
    """Input gradients and attention come first, products for weights and biases later; nothing is in both."""
    plan = dense_plan(**keys)
    check(plan)
    inputs, weights = kernels(plan, "backward_input"), kernels(plan, "backward_weight")
    assert {"matmul_input_gradient"} <= inputs
    assert {"matmul_weight_gradient"} <= weights
    assert "matmul_weight_gradient" not in inputs
    assert "matmul_input_gradient" not in weights
    assert not any("attention" in kernel or "softmax" in kernel for kernel in weights)


def test_parts_make_up_the_whole_backward() -> None:
    """Both parts together hold exactly the ops of the whole backward, each in its order."""
    keys: dict[str, Any] = {"pp": 2, "m": 4, "tp": 2, "sequence_parallel": True}
    for program, whole in zip(
        dense_plan(schedule="zb_h1", **keys).programs, dense_plan(schedule="1f1b", **keys).programs, strict=True
    ):
        (ops,) = (task.ops for name, task in whole.tasks.items() if name.startswith("backward."))
        (first,) = (task.ops for name, task in program.tasks.items() if name.startswith("backward_input."))
        (later,) = (task.ops for name, task in program.tasks.items() if name.startswith("backward_weight."))
        assert len(first) + len(later) == len(ops)
        assert [op for op in ops if op in first] == list(first)
        assert [op for op in ops if op in later] == list(later)


def test_splitting_keeps_what_is_overwritten_before_it_is_read() -> None:
    """An op that reads what the first part later changes in place belongs to the first part."""
    ops = [
        Compute("wait", "delay", ("dy",), ()),
        Compute("product", "matmul", ("dy",), ("dx",)),
        Compute("weight", "matmul", ("dy",), ("dw",)),
        Compute("early", "matmul", ("dx",), ("dv",)),
        Compute("sum", "add", ("dx",), ("dx",)),
    ]
    first, later = split_backward(ops, {"dx"})
    assert [op.name for op in first] == ["wait", "product", "early", "sum"]
    assert [op.name for op in later] == ["weight"]


def test_neighbours_on_one_rank_send_nothing() -> None:
    """At the turn of a V the last rank hands over inside; every other edge has its messages."""
    plan = dense_plan(**V_SHAPE)
    tasks = [set(program.tasks) for program in plan.programs]
    assert "send_forward.1" not in tasks[1]
    assert "recv_forward.2" not in tasks[1]
    assert {"send_forward.0", "recv_forward.3", "recv_backward.0", "send_backward.3"} <= tasks[0]
    assert {"recv_forward.1", "send_forward.2", "send_backward.1", "recv_backward.2"} <= tasks[1]


def test_tied_table_on_one_rank_needs_no_sum() -> None:
    """In a V the first and the last stage share a rank, and so the tied table; in a loop two ranks sum it."""

    def sums(plan: Plan) -> int:
        ops = [op for program in plan.programs for task in program.tasks.values() for op in task.ops]
        return sum(isinstance(op, Collective) and op.stream == "embedding" for op in ops)

    assert sums(dense_plan(**V_SHAPE)) == 0
    assert sums(dense_plan(schedule="breadth_first", virtual_stages=2, pp=2, m=4)) == 2


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_copies_sum_every_gradient_once(schedule: str) -> None:
    """Each rank sums all its gradients, the tied table's included, with the rank that has the same stages."""
    plan = dense_plan(schedule=schedule, pp=4, m=8)
    for rank, program in enumerate(plan.programs):
        summed = [
            name
            for task in program.tasks.values()
            for op in task.ops
            if isinstance(op, Collective) and op.axes == ("pp",) and op.reads != ("loss",)
            for name in op.reads
            if op.members == tuple(sorted((rank, 3 - rank)))
        ]
        gradients = [name for name, buffer in program.buffers.items() if buffer.kind == "gradient"]
        assert sorted(summed) == sorted(gradients)


@pytest.mark.parametrize("keys", SPLIT, ids=lambda keys: keys["schedule"])
def test_coalesced_equals_step_by_step(keys: dict[str, Any]) -> None:
    """With prices of a real cluster every op starts and ends at the same time, coalesced or not."""
    plan = dense_plan(**keys)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    fast, slow = simulate(plan, pricing), simulate(plan, pricing, coalesce=False)
    times, expected = op_times(fast), op_times(slow)
    assert times.keys() == expected.keys()
    assert [times[key] for key in times] == [pytest.approx(expected[key], rel=1e-9, abs=1e-12) for key in times]


def test_zero_bubble_shortens_a_real_pipeline() -> None:
    """On one node ZB-H1 is faster than 1F1B, and every rank keeps as many micro-batches as 1F1B's first."""
    model = GPT | {"hidden_size": 1024, "num_heads": 8, "ffn_hidden_size": 4096, "sequence_length": 1024}
    pricing = pricing_on("dgx-a100-80g", 4)
    plain = simulate(dense_plan(schedule="1f1b", pp=4, m=8, model=model), pricing)
    split = simulate(dense_plan(schedule="zb_h1", pp=4, m=8, model=model), pricing)
    assert split.makespan_s < plain.makespan_s
    assert peaks(split) == [4] * 4
    assert peaks(plain) == [4, 3, 2, 1]
