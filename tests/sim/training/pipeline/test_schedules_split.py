"""Split backwards, several copies and V placements of a real transformer."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.op import Collective, Compute, Op, Recv, Send
from sim.plan.words.program import Phase, Plan, Program, Task
from sim.training.pipeline.split import split_backward
from tests.sim.jobs import GPT, LLAMA, dense_plan, op_times, pricing_on
from tests.sim.training.pipeline.test_textbook_schedules import peaks

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


# --- recomputation -----------------------------------------------------------------------------------------

RECOMPUTED = [
    {"schedule": schedule, "pp": 2, "m": 4, "recompute": recompute} | keys
    for schedule, recompute, keys in (
        ("zb_h1", "full", {}),
        ("zb_h2", "selective", {"tp": 2}),
        ("zb_h2", "full", {"tp": 2, "sequence_parallel": True, "model": LLAMA}),
        ("zb_v", "full", {"virtual_stages": 2, "tp": 2}),
        ("zb_h1", "full", {"model": LLAMA}),
        ("dualpipe", "selective", {"m": 6}),
        ("dualpipe_v", "full", {"virtual_stages": 2, "m": 6}),
    )
]  # fmt: skip


def parts(program: Program) -> Iterator[tuple[Task, Task]]:
    """Yield the two parts of every split backward of a program."""
    for name, task in program.tasks.items():
        if name.startswith("backward_input."):
            yield task, program.tasks[name.replace("input", "weight")]


def recomputed(ops: Iterable[Op]) -> list[str]:
    """Return the names of the ops that run a forward again."""
    return [op.name for op in ops if is_recomputed(op)]


@pytest.mark.parametrize("early", [False, True], ids=["whole", "early stop"])
@pytest.mark.parametrize("keys", RECOMPUTED, ids=lambda keys: f"{keys['schedule']} {keys['recompute']}")
def test_recomputation_belongs_to_the_input_half(keys: dict[str, Any], early: bool) -> None:
    """Everything that runs again does so with the input gradients; the later half has products for weights alone."""
    plan = dense_plan(**keys, checkpoint_early_stop=early)
    check(plan)
    found = [part for program in plan.programs for part in parts(program)]
    assert found
    for inputs, weights in found:
        assert recomputed(inputs.ops)
        assert not recomputed(weights.ops)


@pytest.mark.parametrize("keys", RECOMPUTED, ids=lambda keys: f"{keys['schedule']} {keys['recompute']}")
def test_a_checkpoint_runs_again_what_its_forward_ran(keys: dict[str, Any]) -> None:
    """With whole layers recomputed, every op of a stage's layers runs again once, in the order of the forward."""
    for program in dense_plan(**keys).programs:
        for inputs, _ in parts(program):
            forward = [op.name for op in program.tasks[f"forward.{inputs.stage}"].ops]
            again = [name.removesuffix(".recomputed").replace(".recomputed.", ".") for name in recomputed(inputs.ops)]
            layers = sorted({name.split(".")[0] for name in again}, key=lambda name: int(name.removeprefix("layer")))
            of_layers = {layer: [name for name in again if name.startswith(f"{layer}.")] for layer in layers}
            for layer, names in of_layers.items():
                ran = [name for name in forward if name.startswith(f"{layer}.")]
                assert names == (ran if keys["recompute"] == "full" else [name for name in ran if name in names])


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize(
    "keys",
    [{"context_degree": 4}, {"tp": 4, "sequence_parallel": True, "collective_matmul": True, "model": LLAMA}],
    ids=["ring attention", "collective matmul"],
)
def test_early_stop_sends_what_the_peer_still_receives(keys: dict[str, Any], recompute: str) -> None:
    """Messages around a ring are left out in pairs: each that a rank sends again is received, and none is awaited."""
    model = LLAMA | {"num_layers": 2, "sequence_length": 64}
    plan = dense_plan(**{**keys, "model": model}, m=2, recompute=recompute, checkpoint_early_stop=True)
    check(plan)
    (task,) = (task for task in plan.programs[0].tasks.values() if task.phase is Phase.BACKWARD)
    again = [op for op in task.ops if is_recomputed(op)]
    sent, received = (sum(isinstance(op, kind) for op in again) for kind in (Send, Recv))
    assert sent == received
    assert (sent > 0) == ("context_degree" in keys or recompute == "full")


def test_early_stop_leaves_out_what_follows_the_last_saved_tensor() -> None:
    """Of a llama layer the MLP's second product, its sum over ranks and the residual sum are not run again.

    With dropout, nothing is left out: backward reads the mask of a layer's last op.
    """
    dropping, plain = (
        [
            set(recomputed(dense_plan(model=model, tp=2, recompute="full", checkpoint_early_stop=early)
                           .programs[0].tasks["backward.0"].ops))
            for early in (False, True)
        ]
        for model in (GPT, LLAMA)
    )  # fmt: skip
    assert dropping[0] == dropping[1]
    tail = ["fc2.recomputed", "fc2.recomputed.all_reduce.recomputed", "mlp_out.recomputed"]
    assert plain[0] - plain[1] == {f"layer{index}.{name}" for index in range(4) for name in tail}


@pytest.mark.parametrize("keys", RECOMPUTED, ids=lambda keys: f"{keys['schedule']} {keys['recompute']}")
def test_recomputation_costs_time_and_saves_memory(keys: dict[str, Any]) -> None:
    """Recomputing more never makes a step shorter, and never takes more memory; stopping early does not cost time."""
    model = dict(keys.get("model", GPT)) | {"hidden_size": 512, "sequence_length": 512, "num_layers": 8}
    model |= {"ffn_hidden_size": 4 * 512}
    pricing = pricing_on("dgx-a100-80g", 4)
    keys = keys | {"model": model, "precision": "bf16"}
    runs = {
        name: simulate(dense_plan(**keys | changes), pricing)
        for name, changes in {
            "none": {"recompute": "none"},
            "selective": {"recompute": "selective"},
            "full": {"recompute": "full"},
            "early": {"recompute": "full", "checkpoint_early_stop": True},
        }.items()
    }
    step_s = {name: run.makespan_s for name, run in runs.items()}
    assert step_s["none"] <= step_s["selective"] <= step_s["full"]
    assert step_s["early"] <= step_s["full"]
    peaks_bytes = {name: [memory_use(p).peak_bytes for p in run.plan.programs] for name, run in runs.items()}
    assert max(peaks_bytes["full"]) <= max(peaks_bytes["none"])
    assert max(peaks_bytes["early"]) <= max(peaks_bytes["full"])
