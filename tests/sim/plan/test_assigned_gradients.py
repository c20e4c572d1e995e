"""Steps that clear no gradients: what is assigned, what that saves, and what stays as it was."""

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.description import kernel_work
from sim.plan.functions.assigned_gradients import assign_gradients
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Program, Task
from sim.training.spec.models.experts import ExpertsSpec
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_plan, pricing_on

SCHEDULES = {
    "1f1b": {"pp": 2}, "zb_h1": {"pp": 2}, "zb_v": {"pp": 2, "virtual_stages": 2},
    "interleaved_1f1b": {"pp": 2, "virtual_stages": 2}, "chimera": {"pp": 2}, "gpipe": {"pp": 4},
    "aiao": {"pp": 2, "virtual_stages": 2, "dp": 2, "deferred_sync": 0.5},
}  # fmt: skip


def both(**keys: Any) -> tuple[Program, Program]:
    """Return the first rank's program with gradients cleared and with gradients assigned, in fp32."""
    plans = [dense_plan(precision="fp32", set_gradients_to_none=none, **keys) for none in (False, True)]
    for plan in plans:
        check(plan)
    return plans[0].programs[0], plans[1].programs[0]


def moved_bytes(program: Program) -> int:
    """Return what all kernels of a step read and write."""
    ops = [op for *_, op in program.instances() if isinstance(op, Compute)]
    return sum(kernel_work(program, op).num_bytes for op in ops)


@settings(deadline=None, max_examples=examples(10))
@given(
    st.sampled_from(list(SCHEDULES)),
    st.sampled_from([2, 4]),
    st.sampled_from([GPT, LLAMA]),
    st.sampled_from(["none", "full"]),
    st.booleans(),
)
def test_every_gradient_is_assigned_once_and_nothing_cleared(
    schedule: str, microbatches: int, model: dict[str, Any], recompute: str, fused: bool
) -> None:
    """In call order each gradient is first written by an op that does not read it, and then only added to."""
    keys = SCHEDULES[schedule] | {"m": microbatches, "model": model, "recompute": recompute}
    cleared, assigned = both(schedule=schedule, fused_gradient_accumulation=fused, **keys)
    gradients = {name for name, buffer in assigned.buffers.items() if buffer.kind is Kind.GRADIENT}
    begun: dict[str, int] = dict.fromkeys(gradients, 0)
    for _, call, task, op in assigned.instances():
        assert not (isinstance(op, Compute) and op.kernel == "zero" and gradients & set(op.writes))
        if task.phase is Phase.BACKWARD or task.phase is Phase.BACKWARD_INPUT:
            assert call.lag == 0
            for name in gradients & set(op.writes):
                begun[name] += name not in op.reads
                assert begun[name] == 1, (name, op)
    assert set(begun.values()) == {1}
    weights = [
        [op.name for *_, op in p.instances() if op.name.endswith("weight_gradient")] for p in (cleared, assigned)
    ]
    assert weights[0] == weights[1]


def test_assigning_saves_the_clearing_and_one_addition() -> None:
    """Bytes less per weight of n elements: n written, and 3 n of its first addition; the table and positions: none."""
    cleared, assigned = both(m=3, fused_gradient_accumulation=False)
    sizes = {name: b.num_bytes for name, b in assigned.buffers.items() if b.kind is Kind.GRADIENT}
    added = sum(n for name, n in sizes.items() if name.endswith(".weight.gradient") and "norm" not in name)
    table, positions = sizes["embedding.word.gradient"], sizes["embedding.position.gradient"]
    saved = 4 * (added + table)  # the output layer, whose weight the table is, comes first and makes its gradient
    small = sum(sizes.values()) - added - table - positions
    assert moved_bytes(cleared) - moved_bytes(assigned) == saved + 2 * small  # positions: zeros all the same


MIXTURE = LLAMA | {"experts": ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=16)}


@pytest.mark.parametrize("keys", [
    {"model": GPT | {"tied_embeddings": False}},
    {"model": LLAMA, "tp": 2, "sequence_parallel": True, "collective_matmul": True},
    {"model": MIXTURE, "dp": 2, "expert_degree": 2},
    {"model": LLAMA, "context_degree": 2},
])  # fmt: skip
def test_only_tables_whose_rows_are_touched_begin_with_zeros(keys: dict[str, Any]) -> None:
    """Every product makes its weight's gradient by itself, in pieces and by expert, too."""
    _, assigned = both(m=2, **keys)
    zeros = {op.writes[0] for *_, op in assigned.instances() if isinstance(op, Compute) and op.kernel == "zeros"}
    assert zeros <= {"embedding.word.gradient", "embedding.position.gradient"}


def test_gradients_take_no_memory_before_they_are_assigned() -> None:
    """When the first backward begins, a step holds less by all gradients; at its end as much, but for those."""
    cleared, assigned = both(m=2)
    gradients = sum(
        -(-4 * prod(b.shape) // 512) * 512 for b in assigned.buffers.values() if b.kind is Kind.GRADIENT
    )  # fmt: skip
    at = {call.task: index for index, call in reversed(list(enumerate(assigned.calls)))}
    before = memory_use(assigned).before_bytes[at["backward.0.first"]]
    there = {call.task: index for index, call in reversed(list(enumerate(cleared.calls)))}
    assert memory_use(cleared).before_bytes[there["backward.0"]] - before == gradients


def test_a_single_microbatch_keeps_the_tasks_names() -> None:
    """Where every backward is the first, there is one version of it, under its own name."""
    cleared, assigned = both(m=1)
    assert cleared.tasks.keys() == assigned.tasks.keys()
    assert [call.task for call in cleared.calls] == [call.task for call in assigned.calls]


def test_gradients_that_wait_for_the_next_step_stay() -> None:
    """What aiao sums and uses in the next step is there from step to step; what the step itself uses is not."""
    _, assigned = both(schedule="aiao", m=4, **SCHEDULES["aiao"])
    scopes = {name: b.scope for name, b in assigned.buffers.items() if b.kind is Kind.GRADIENT}
    assert scopes["layer0.fc1.weight.gradient"] is Scope.STEP
    assert scopes["layer2.fc1.weight.gradient"] is Scope.PERSISTENT


def test_a_step_is_shorter_by_what_the_device_need_not_do() -> None:
    """On one GPU nothing hides the clearing and the additions, so the step is shorter by their times."""
    keys = {"precision": "fp32", "m": 1, "fused_gradient_accumulation": False}
    times = [
        simulate(dense_plan(set_gradients_to_none=none, **keys), pricing_on("dgx-a100-80g", 1)).iteration_time_s
        for none in (False, True)
    ]
    assert 0.6 < times[1] / times[0] < 1.0


@pytest.mark.parametrize("reader", ["slice", "copy"])
def test_gradients_that_something_reads_before_they_are_written_are_cleared_as_before(reader: str) -> None:
    """Zeros that an op reads or writes over are no mere start of a sum, so they stay; others go."""
    kinds = {"a": Kind.GRADIENT, "b": Kind.GRADIENT, "x": Kind.PARAMETER, "y": Kind.PARAMETER}
    buffers = {name: Buffer(name, (4,), "float32", kind, Scope.PERSISTENT) for name, kind in kinds.items()}
    attributes = {"dim": 0, "axes": (), "parts": 1}
    reading = Compute("read", reader, ("a", "y") if reader == "copy" else ("a",), ("y",), attributes)
    adding = [Compute(f"add.{name}", "add", ("x", name), (name,)) for name in "ab"]
    clearing = Compute("clear", "zero", ("a", "b"), ("a", "b"))
    tasks = {
        "clear": Task("clear", Phase.PREPARE, (clearing,)),
        "backward": Task("backward", Phase.BACKWARD, (reading, *adding)),
    }
    program = Program({}, buffers, tasks, (Call("clear"), Call("backward", 0)))
    rewritten = assign_gradients(program)
    (left,) = rewritten.tasks["clear"].ops
    assert left.writes == ("a",)
    kernels = [op.kernel for op in rewritten.tasks["backward"].ops if isinstance(op, Compute)]
    assert kernels == [reader, "add", "zeros", "add"]
