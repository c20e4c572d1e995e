"""Full recomputation of n layers of every stage: which run again, what that keeps, and what it costs."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.memory import memory_use
from sim.plan.checking.check import check
from sim.plan.facts.description import describe
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.program import Phase, Program
from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.parallelism.stage_layers import split_layers
from tests.activation_formulas import activation_bytes_per_layer
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan

S, H, L = 2048, 6144, 4
LARGE = GPT | {
    "hidden_size": H, "num_heads": 64, "num_kv_heads": 64, "ffn_hidden_size": 4 * H, "sequence_length": S,
    "vocab_size": 51200, "num_layers": L,
}  # fmt: skip
"""Four layers of the 22B model of Korthikanti et al. 2022."""


def kept_bytes(**keys: Any) -> int:
    """Return what a plan of one stage holds for its micro-batch between its forward and its backward."""
    (program,) = dense_plan(model=LARGE, tp=8, **keys).programs
    use, at = memory_use(program), {call.task: index for index, call in enumerate(program.calls)}
    return int(use.before_bytes[at["backward.0"]] - use.before_bytes[at["forward.0"]])


def layer_bytes(recompute: Any, *, sequence_parallel: bool) -> float:
    """Return the published activations of one layer."""
    return activation_bytes_per_layer(
        sequence_length=S, microbatch_size=1, hidden_size=H, num_heads=64, tensor_degree=8,
        sequence_parallel=sequence_parallel, recompute=recompute,
    )  # fmt: skip


def flop(program: Program) -> float:
    """Return the FLOP of a program's step."""
    tasks = {name: sum(describe(program, task, op).flop for op in task.ops) for name, task in program.tasks.items()}
    return sum(tasks[call.task] for call in program.calls)


def recomputed_layers(program: Program, stage: int) -> list[int]:
    """Return the layers that a stage's backward runs again, in the order in which it does."""
    (task,) = (t for t in program.tasks.values() if t.phase is Phase.BACKWARD and t.stage == stage)
    again = [op.name.partition(".")[0] for op in task.ops if is_recomputed(op)]
    return [int(name.removeprefix("layer")) for name in dict.fromkeys(again)]


# --- memory and FLOP, against closed forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("n", range(1, L + 1))
def test_block_keeps_the_inputs_of_n_layers_and_all_of_the_others(n: int, *, sequence_parallel: bool) -> None:
    """n inputs of 2sbh, and L - n layers of Korthikanti's table 2, beside what the model's ends keep."""
    keys = {"sequence_parallel": sequence_parallel, "recompute": "full"}
    full, none = (layer_bytes(mode, sequence_parallel=sequence_parallel) for mode in ("full", "none"))
    more = kept_bytes(**keys, recompute_num_layers=n) - kept_bytes(**keys)
    assert more == pytest.approx((L - n) * (none - full), rel=1e-3)


@pytest.mark.parametrize("n", range(1, L + 1))
def test_uniform_keeps_the_input_of_every_nth_layer(n: int) -> None:
    """ceil(L / n) inputs of 2sbh."""
    keys = {"recompute": "full", "recompute_method": "uniform"}
    more = kept_bytes(**keys, recompute_num_layers=n) - kept_bytes(**keys, recompute_num_layers=L)
    assert more == pytest.approx((ceil(L / n) - 1) * layer_bytes("full", sequence_parallel=False), rel=1e-3)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(("method", "per_layer"), [("block", 1), ("uniform", 0)])
def test_each_recomputed_layer_costs_its_forward_again(model: dict[str, Any], method: Any, per_layer: int) -> None:
    """n/L of what full recomputation adds to a step, or all of it whatever layers are recomputed at a time."""
    (none,), (full,) = (dense_plan(model=model, m=2, recompute=mode).programs for mode in ("none", "full"))
    num_layers, again = model["num_layers"], flop(full) - flop(none)
    assert again > 0.2 * flop(none)
    for n in range(1, num_layers + 1):
        keys = {"recompute_num_layers": n, "recompute_method": method}
        (some,) = dense_plan(model=model, m=2, recompute="full", **keys).programs
        share = n / num_layers if per_layer else 1
        assert flop(some) - flop(none) == pytest.approx(again * share, rel=1e-12)


# --- which layers ----------------------------------------------------------------------------------------------------


def test_block_takes_the_first_layers_of_every_virtual_stage() -> None:
    """Of stages with 3, 1, 2 and 3 layers two each, where there are two; the others are not run again."""
    layers = (3, 1, 2, 3)
    plan = dense_plan(
        pp=2, m=4, model=GPT | {"num_layers": sum(layers)}, schedule="interleaved_1f1b", virtual_stages=2,
        layers_per_stage=layers, recompute="full", recompute_num_layers=2,
    )  # fmt: skip
    check(plan)
    found = {stage: recomputed_layers(plan.programs[stage % 2], stage) for stage in range(4)}
    assert found == {0: [1, 0], 1: [3], 2: [5, 4], 3: [7, 6]}


def test_uniform_runs_layers_again_together_and_forward() -> None:
    """Five layers two at a time: the last alone, then pairs, each in the order of the forward."""
    (program,) = dense_plan(
        model=GPT | {"num_layers": 5}, recompute="full", recompute_num_layers=2, recompute_method="uniform"
    ).programs
    assert recomputed_layers(program, 0) == [4, 2, 3, 0, 1]


def test_stages_that_recompute_otherwise_are_left_alone() -> None:
    """The number counts layers of the stages whose mode is full."""
    plan = dense_plan(
        pp=2, m=4, model=LLAMA, recompute_per_stage=("selective", "full"), recompute_num_layers=1
    )  # fmt: skip
    assert recomputed_layers(plan.programs[1], 1) == [2]
    (task,) = (t for t in plan.programs[0].tasks.values() if t.phase is Phase.BACKWARD)
    again = {op.name for op in task.ops if is_recomputed(op)}
    assert again
    assert all(".attention" in name for name in again)


@pytest.mark.parametrize("mode", ["block", "uniform"])
def test_all_layers_one_by_one_is_full_recomputation(mode: Any) -> None:
    """n = L as blocks, and n = 1 in uniform chunks, are the plan without a number."""
    n = {"block": GPT["num_layers"], "uniform": 1}[mode]
    plan = dense_plan(m=2, recompute="full", recompute_num_layers=n, recompute_method=mode)
    assert plan.programs == dense_plan(m=2, recompute="full").programs


def test_named_layers_run_again_and_no_others() -> None:
    """Layers of the model are named, whatever stage they lie on; an empty list recomputes none, all of them all."""
    plan = dense_plan(pp=2, m=4, model=LLAMA, recompute="full", recompute_layers=(1, 2))
    assert [recomputed_layers(plan.programs[stage], stage) for stage in (0, 1)] == [[1], [2]]
    named = ((), tuple(range(GPT["num_layers"])))
    none, every = (dense_plan(m=2, recompute="full", recompute_layers=layers) for layers in named)
    assert none.programs == dense_plan(m=2).programs
    assert every.programs == dense_plan(m=2, recompute="full").programs


# --- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(10), deadline=None)
@given(
    layers=st.integers(1, 5), tp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]),
    zero_stage=st.sampled_from([0, 1, 3]), model=st.sampled_from([GPT, LLAMA]),
    precision=st.sampled_from(["bf16", "fp32"]), m=st.integers(2, 3),
)  # fmt: skip
def test_more_recomputed_layers_never_take_more_memory_nor_less_work(
    *, layers: int, tp: int, dp: int, pp: int, zero_stage: int, model: dict[str, Any], precision: str, m: int
) -> None:
    """From no layer to all, stage by stage: what is kept falls, peaks do not rise, FLOP do not fall."""
    spec = PipelineSpec(degree=pp)
    model = model | {"num_layers": max(layers, pp), "sequence_length": 256}
    keys = {"tp": tp, "dp": dp, "pp": pp, "m": m, "zero_stage": zero_stage, "model": model, "precision": precision}
    most = max(split_layers(model["num_layers"], spec))
    modes = [{"recompute": "none"}, *({"recompute": "full", "recompute_num_layers": n} for n in range(1, most + 1))]
    plans = [dense_plan(**keys, **mode) for mode in modes]
    for programs in zip(*(plan.programs for plan in plans), strict=True):
        work, peaks = [flop(p) for p in programs], [memory_use(p).peak_bytes for p in programs]
        assert work == sorted(work)
        assert peaks == sorted(peaks, reverse=True)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"recompute_layers": (1,)}, "training.recompute_layers", "recompute is none; .*recompute: full"),
        ({"recompute": "full", "recompute_layers": (4,)}, "training.recompute_layers", "layer 4 is named.*0 to 3"),
        ({"recompute": "full", "recompute_layers": (0,), "recompute_num_layers": 1}, "training.recompute_layers",
         "their number in every stage is given as well"),
        ({"recompute": "full", "recompute_layers": (0,), "pp": 2, "m": 2, "recompute_per_stage": ("full", "none")},
         "training.recompute_layers", "recompute_per_stage says it"),
        ({"recompute_num_layers": 1}, "training.recompute_num_layers", "recompute is none; .*recompute: full"),
        ({"recompute": "selective", "recompute_num_layers": 1}, "training.recompute_num_layers", "is selective"),
        ({"recompute": "full", "recompute_num_layers": 5}, "training.recompute_num_layers", "1 to 4 layers.*not 5"),
        ({"recompute": "full", "recompute_num_layers": 0}, "training.recompute_num_layers", "1 to 4 layers.*not 0"),
        ({"recompute": "full", "recompute_num_layers": 3, "pp": 2, "m": 2}, "training.recompute_num_layers",
         "1 to 2 layers can be recomputed, not 3; write 1 to 2"),
        ({"recompute": "full", "recompute_method": "block"}, "training.recompute_method", "none is given"),
    ],
)  # fmt: skip
def test_numbers_without_effect_are_refused(keys: dict[str, Any], key: str, words: str) -> None:
    """Each with the key to change, the rule and a remedy."""
    with pytest.raises(SpecError, match=words) as refusal:
        dense_job(**keys)
    assert refusal.value.key == key
