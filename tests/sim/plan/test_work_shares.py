"""What the work of every op is for, against closed forms, other plans, and values that know where they come from."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.computing import computing_seconds
from sim.engine.running.simulate import simulate
from sim.plan.facts.description import describe
from sim.plan.facts.work_shares import RECOMPUTED, TaskShares, WorkShares, _Walk, work_shares
from sim.plan.functions.experts import filled_slots
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.op import Compute
from sim.plan.words.program import Plan
from sim.training.data.axes import SAMPLE_AXES
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on
from tests.sim.strategies import aiao_keys, context_keys, dense_keys, expert_keys
from tests.sim.training.values import ranks_alike

KEYS = st.one_of(expert_keys(), dense_keys(), context_keys(may_have_experts=True), aiao_keys())
"""Any techniques together: experts, all schedules and kinds of recomputation, shards, shared sequences."""


def shares_of(plan: Plan) -> tuple[TaskShares, ...]:
    """Return what the ops of a plan work for."""
    return work_shares(plan, SAMPLE_AXES)


def flop_by_purpose(plan: Plan) -> WorkShares:
    """Return the FLOP of all ranks, by what they are for."""
    total = [0.0] * len(WorkShares._fields)
    for program, shares in zip(plan.programs, shares_of(plan), strict=True):
        for call in program.calls:
            task = program.tasks[call.task]
            for op, share in zip(task.ops, shares[task.name], strict=True):
                flop = describe(program, task, op).flop * len(plan.ranks_of(program))
                total = [known + flop * part for known, part in zip(total, share, strict=True)]
    return WorkShares(*total)


def kernels(plan: Plan, counted: Callable[[Compute], bool] = lambda _: True) -> Counter[Any]:
    """Return how often each role's kernels run on which shapes in a step; waits, which write nothing, are left out."""
    return Counter(
        (program.role_name, op.kernel, *(program.buffers[name].shape for name in op.reads))
        for program in plan.programs for *_, op in program.instances()
        if isinstance(op, Compute) and op.writes and counted(op)
    )  # fmt: skip


@settings(max_examples=examples(10))
@given(KEYS)
def test_needed_flop_are_the_models(keys: dict[str, Any]) -> None:
    """What ops need adds up to the closed form; shares are fractions of one; what there is no reason for is zero."""
    job = dense_job(**keys)
    plan = build_dense_training(job, "flop")
    for shares in shares_of(plan):
        for share in (share for of_task in shares.values() for share in of_task):
            assert min(share) >= 0.0
            assert sum(share) == pytest.approx(1.0, rel=1e-12)
    flop = flop_by_purpose(plan)
    assert flop.needed == pytest.approx(job.model_flop, rel=1e-9)
    assert (flop.recomputed > 0.0) == (job.training.recompute != "none")
    assert job.model.experts or flop.empty_slots == flop.duplicated == 0.0


@settings(max_examples=examples(8))
@given(KEYS)
def test_recomputed_ops_are_those_that_a_plan_without_recomputation_lacks(keys: dict[str, Any]) -> None:
    """Kernel by kernel and shape by shape, a plan with recomputation runs the marked ops beside all of one without."""
    plan, without = dense_plan(**keys), dense_plan(**keys | {"recompute": "none"})
    again, marked = kernels(plan), kernels(plan, is_recomputed)
    again.subtract(kernels(without))
    assert +again == marked
    assert not -again
    for program, shares in zip(plan.programs, shares_of(plan), strict=True):
        for name, of_task in shares.items():
            for op, share in zip(program.tasks[name].ops, of_task, strict=True):
                assert (share == RECOMPUTED) == (isinstance(op, Compute) and is_recomputed(op))


@settings(max_examples=examples(6))
@given(KEYS)
def test_duplicated_work_is_what_several_ranks_do_on_the_same_values(keys: dict[str, Any]) -> None:
    """Run on values that know where they come from, as many ranks get each value as its op's share says."""
    plan = dense_plan(**keys)
    alike = ranks_alike(plan, SAMPLE_AXES)
    for program, shares in zip(plan.programs, shares_of(plan), strict=True):
        for (_, task, number), counts in alike[plan.ranks_of(program)[0]].items():
            share, op = shares[task][number], program.tasks[task].ops[number]
            if share == RECOMPUTED or (isinstance(op, Compute) and op.kernel in {"zeros", "delay"}):
                continue
            assert {round((share.needed + share.duplicated) / share.needed)} == set(counts.values()), op


@settings(max_examples=examples(40))
@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 32), st.sampled_from([0.1, 0.25, 1.0, 1.1, 4.0, 32.0]))
def test_slots_fill_as_experts_are_dealt_out(tokens: int, top_k: int, num_experts: int, factor: float) -> None:
    """Choices dealt out in turn fill as many slots as counted; with a factor of 1 or more every choice finds one."""
    top_k = min(top_k, num_experts)
    spec = ExpertsSpec(num_experts=num_experts, top_k=top_k, ffn_hidden_size=4, capacity_factor=factor)
    capacity = spec.capacity(tokens)
    dealt = Counter(choice % num_experts for choice in range(tokens * top_k))
    filled = sum(min(count, capacity) for count in dealt.values())
    assert filled_slots(tokens * top_k, num_experts, capacity) == filled <= num_experts * capacity
    assert spec.reached(tokens) == pytest.approx(filled / tokens)
    assert factor < 1.0 or filled == tokens * top_k


@pytest.mark.parametrize(("keys", "kernel", "duplicated"), [
    ({"tp": 4}, "layer_norm", 3 / 4),
    ({"tp": 4, "sequence_parallel": True}, "layer_norm", 0.0),
    ({"tp": 4, "dp": 2}, "layer_norm_backward", 3 / 4),
    ({"tp": 4}, "matmul_weight_gradient", 0.0),
    ({"dp": 4}, "adam", 3 / 4),
    ({"dp": 4, "zero_stage": 1}, "adam_piece", 0.0),
    ({"dp": 4, "pp": 2}, "matmul", 0.0),
])  # fmt: skip
def test_who_does_the_same(keys: dict[str, Any], kernel: str, duplicated: float) -> None:
    """Tensor-parallel ranks repeat norms unless they split the sequence, replicas the optimizer unless ZeRO does."""
    plan = dense_plan(model=GPT | {"tied_embeddings": False}, **keys)
    found = {
        share.duplicated
        for program, shares in zip(plan.programs, shares_of(plan), strict=True) for name, of_task in shares.items()
        for op, share in zip(program.tasks[name].ops, of_task, strict=True)
        if isinstance(op, Compute) and op.kernel == kernel
    }  # fmt: skip
    assert found == {duplicated}


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("capacity_factor", [0.25, 1.0, 4.0])
def test_seconds_of_recomputation_are_those_that_a_step_without_it_saves(pp: int, capacity_factor: float) -> None:
    """Ops beside which nothing runs take as long in both steps, so the difference of their sums is what runs again."""
    experts = ExpertsSpec(num_experts=8, top_k=2, ffn_hidden_size=64, capacity_factor=capacity_factor)
    seconds = {}
    for recompute in ("none", "selective", "full"):
        plan = dense_plan(model=LLAMA | {"experts": experts}, pp=pp, m=4, recompute=recompute)
        run, shares = simulate(plan, pricing_on("hgx-h100", pp)), shares_of(plan)
        for (rank, spent), of_program in zip(breakdowns(run).items(), shares, strict=True):
            parts, busy_s = computing_seconds(run, rank, of_program), spent.busy_s["compute"]
            assert sum(parts.values()) == pytest.approx(busy_s, rel=1e-12)
            assert (parts["empty_slots"] > 0.0) == (capacity_factor > 1.0)
            seconds[recompute, rank] = busy_s, parts["recomputed"]
    for (recompute, rank), (busy_s, again_s) in seconds.items():
        assert again_s == pytest.approx(busy_s - seconds["none", rank][0], abs=1e-9 * busy_s)
        assert (again_s > 0.0) == (recompute != "none")


def test_programs_wait_for_messages_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first stage knows its gradients only once the second has gone through them: both go through each task once."""
    walked = list[str]()
    shares_of_task = _Walk._shares_of

    def noted(self: _Walk, task: str) -> tuple[WorkShares, ...]:
        walked.append(task)
        return shares_of_task(self, task)

    monkeypatch.setattr(_Walk, "_shares_of", noted)
    plan = dense_plan(pp=2, m=4)
    shares_of(plan)
    assert Counter(walked) == Counter(name for program in plan.programs for name in program.tasks)
