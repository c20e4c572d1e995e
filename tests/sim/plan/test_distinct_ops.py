"""Ops that are alike but for names are found, and what is asked about one of them holds for all."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.traffic import signature
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.errors import ErrorClasses
from sim.plan.facts.description import kernel_work
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.words.buffer import Buffer, Kind, Tier
from sim.plan.words.op import SEED, Compute, Op, Recv
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples
from tests.sim.jobs import LLAMA, dense_plan, pricing_on
from tests.sim.strategies import aiao_keys, context_keys, dense_keys, expert_keys

KEYS = st.one_of(expert_keys(), dense_keys(), context_keys(may_have_experts=True), aiao_keys())


def nameless(program: Program, op: Op) -> Op:
    """Return an op without its name and its seed, whose buffers are called by shape, type and tier."""
    reads, writes = (tuple(_told(program, name) for name in names) for names in (op.reads, op.writes))
    if isinstance(op, Compute):
        attributes = {key: value for key, value in op.attributes.items() if key != SEED}
        return replace(op, name="", reads=reads, writes=writes, attributes=attributes)
    return replace(op, name="in place" if op.reads == op.writes else "", reads=reads, writes=writes)


def _told(program: Program, name: str) -> str:
    buffer = program.buffers[name]
    return f"{buffer.shape} {buffer.dtype} {buffer.tier}"


@settings(max_examples=examples(10))
@given(KEYS)
def test_distinct_ops_differ_in_more_than_names_and_others_do_not(keys: dict[str, Any]) -> None:
    """In plans with any techniques, compared field by field."""
    for program in dense_plan(**keys).programs:
        first = [nameless(program, op) for op in program.distinct_ops.ops]
        in_place = [op.reads == op.writes for op in program.distinct_ops.ops]
        assert all((one, here) != (other, there) for at, (one, here) in enumerate(zip(first, in_place, strict=True))
                   for other, there in [*zip(first, in_place, strict=True)][:at])  # fmt: skip
        for name, task in program.tasks.items():
            for op, place in zip(task.ops, program.distinct_ops.of_task[name], strict=True):
                assert nameless(program, op) == first[place]


@settings(max_examples=examples(6), deadline=None)
@given(KEYS)
def test_ops_that_are_alike_cost_the_same(keys: dict[str, Any]) -> None:
    """Price, work, error class and signature of each op of a rank are those of the first like it."""
    plan = dense_plan(**keys)
    pricing, classes = pricing_on("hgx-h100", plan.mesh.size), ErrorClasses()
    for program in plan.programs:
        rank, distinct = plan.ranks_of(program)[0], program.distinct_ops
        for name, task in program.tasks.items():
            for op, place in zip(task.ops, distinct.of_task[name], strict=True):
                alone = replace(program, tasks={name: replace(task, ops=(op,))})
                assert classes.of_distinct(program)[place] == ErrorClasses().of_distinct(alone)[0]
                first = distinct.ops[place]
                assert pricing.price(plan, program, op, rank) == pricing.price(plan, program, first, rank)
                if isinstance(op, Compute):
                    assert isinstance(first, Compute)
                    assert kernel_work(program, op) == kernel_work(program, first)
                elif not isinstance(op, Recv):
                    assert signature(program, op) == signature(program, first)


class Counting:
    """Prices that count how often they are asked."""

    def __init__(self, plan: Plan) -> None:
        self.pricing, self.asked = pricing_on("hgx-h100", plan.mesh.size), Counter[int]()

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the price of the op."""
        self.asked[rank] += 1
        return self.pricing.price(plan, program, op, rank)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def test_more_layers_ask_for_no_more_prices() -> None:
    """A rank of 32 layers asks as often as one of 8: once for each distinct op."""
    asked = []
    for layers in (8, 32):
        plan = dense_plan(model=LLAMA | {"num_layers": layers}, pp=2, tp=2, m=2)
        pricing = Counting(plan)
        simulate(plan, pricing, fold=no_fold)
        assert pricing.asked == {r: len(plan.program_of(r).distinct_ops.ops) for r in range(plan.mesh.size)}
        asked.append(pricing.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("change", [{"shape": (7,)}, {"dtype": "float16"}, {"tier": Tier.HOST}, {"name": "other"}])
def test_what_tells_buffers_apart_tells_ops_apart(change: dict[str, Any]) -> None:
    """Shape, type and tier do; names do not, and neither do seeds."""
    buffer = Buffer("x", (8,), "float32", Kind.ACTIVATION)
    other = replace(buffer, **{"name": "y"} | change)
    ops = tuple(Compute(f"op{n}", "dropout", (b.name,), (b.name,), {SEED: n}) for n, b in enumerate((buffer, other)))
    task = Task("step", Phase.OPTIMIZER, ops)
    program = Program({}, {"x": buffer, other.name: other}, {"step": task}, (Call("step"),))
    assert program.distinct_ops.of_task == {"step": (0, 0 if "name" in change else 1)}


def test_kernels_with_other_attributes_and_streams_are_told_apart() -> None:
    """Attributes, streams and numbers of inputs tell kernels apart that use the same buffers."""
    op = Compute("op", "scale", ("x",), ("x",), {"factor": 2.0})
    changes: list[dict[str, Any]] = [{"name": "op2"}, {"attributes": {"factor": 3.0}}, {"stream": "other"}]
    changes += [{"reads": ("x", "x"), "writes": ()}, {"reads": ()}, {"kernel": "zero"}]
    task = Task("step", Phase.OPTIMIZER, (op, *[replace(op, **change) for change in changes]))
    buffers = {"x": Buffer("x", (8,), "float32", Kind.ACTIVATION)}
    program = Program({}, buffers, {"step": task}, (Call("step"),))
    assert program.distinct_ops.of_task == {"step": (0, 0, 1, 2, 3, 4, 5)}


def test_programs_of_the_same_tasks_share_distinct_ops() -> None:
    """So do stages that are equal but for names, and a program with other calls."""
    plan = sharing_tasks(dense_plan(model=LLAMA | {"num_layers": 8}, pp=4, m=4))
    second, third = plan.programs[1:3]
    assert second.distinct_ops is third.distinct_ops
    again = second.calling(second.calls[:1])
    assert again.distinct_ops is second.distinct_ops
    assert again.bytes_of is second.bytes_of
    assert second.bytes_of == {name: buffer.num_bytes for name, buffer in second.buffers.items()}
