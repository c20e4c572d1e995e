"""Layers with experts: slots, sizes, bytes, sums and prices, against closed forms and laws."""

from math import ceil
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.torch.reference.gates import DEFINITIONS
from costmodels.software import Software
from sim.engine.findings.sent import sent_bytes
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.moe.dense_to_sparse import DenseToSparse
from sim.plan.checking.check import check
from sim.plan.facts.description import describe, kernel_work
from sim.plan.facts.work_shares import work_shares
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Plan
from sim.training.data.axes import SAMPLE_AXES
from sim.training.errors import SpecError
from sim.training.gates.registry import GATES, ExpertGate
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.sharding import ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on

H, F, S = LLAMA["hidden_size"], 48, LLAMA["sequence_length"]
EXPERTS: dict[str, Any] = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": F}


def mixture(family: dict[str, Any] = LLAMA, **keys: Any) -> dict[str, Any]:
    """Return a model whose MLPs are eight experts each."""
    return family | {"dropout": 0.0, "experts": ExpertsSpec(**EXPERTS | keys)}


def collectives(plan: Plan) -> list[tuple[str, Collective, int]]:
    """Return the task of every collective of the first role, the op and how often a step runs it."""
    program = plan.programs[0]
    calls = [call.task for call in program.calls]
    return [
        (name, op, calls.count(name))
        for name, task in program.tasks.items()
        for op in task.ops
        if isinstance(op, Collective)
    ]


def test_placeholders_stand_for_one_expert() -> None:
    """Autograd knows the experts of a grouped product one by one: of each shape one tensor is kept, for all of them."""
    keys = {"model": mixture(), "precision": "bf16", "gradient_placeholders": True}
    (program,) = dense_plan(**keys).programs
    shapes = {b.shape for name, b in program.buffers.items() if name.startswith("gradient_placeholder.")}
    assert {(H, 2, F), (F, H)} <= shapes
    assert not any(shape[0] == 8 and len(shape) > 2 and shape[1:] in {(H, 2, F), (F, H)} for shape in shapes)


def test_a_framework_without_fused_kernels_takes_longer_over_experts_alone() -> None:
    """Choosing experts and summing what they make last longer in a step of experts; a step of MLPs is as it was."""
    pricing = pricing_on("hgx-h100", 1)
    unfused = [pricing.under(Software(**{key: False})) for key in ("fused_routing", "fused_permutation")]
    for model, is_longer in ((mixture(), True), (LLAMA, False)):
        plan = dense_plan(model=model)
        step_s = simulate(plan, pricing).iteration_time_s
        assert [simulate(plan, prices).iteration_time_s > step_s for prices in unfused] == [is_longer] * 2


def test_a_routers_gradients_are_products_of_32_bits() -> None:
    """The gradient of the weight is one: it multiplies the gradient of the scores. A layer's multiplies 16 bits."""
    program = dense_plan(model=mixture(), precision="bf16").programs[0]
    ops = {op.kernel: op for *_, op in program.instances() if isinstance(op, Compute)}
    for name, dtype in (("router_matmul_weight_gradient", "float32"), ("matmul_weight_gradient", "")):
        assert kernel_work(program, ops[name]).dtype == dtype


# --- slots and sizes -----------------------------------------------------------------------------------------------


@given(
    st.integers(1, 300), st.integers(1, 64), st.integers(1, 8),
    st.sampled_from([0.5, 1.0, 1.1, 1.25, 2.0, 3.7]),
)  # fmt: skip
def test_capacity_is_the_even_share_times_the_factor(tokens: int, num_experts: int, top_k: int, factor: float) -> None:
    """C = ceil(c T k / E), no more than there are tokens, and so that E/k drops nothing whatever is chosen."""
    top_k = min(top_k, num_experts)
    spec = ExpertsSpec(num_experts=num_experts, top_k=top_k, ffn_hidden_size=4, capacity_factor=factor)
    capacity = spec.capacity(tokens)
    assert 1 <= capacity <= tokens
    exact = factor * tokens * top_k / num_experts
    assert capacity == tokens or exact - 1e-6 <= capacity < exact + 1 + 1e-6
    everything = ExpertsSpec(
        num_experts=num_experts, top_k=top_k, ffn_hidden_size=4, capacity_factor=num_experts / top_k
    )
    assert everything.capacity(tokens) == tokens


def test_capacity_of_a_decimal_factor_is_that_of_the_decimal() -> None:
    """1.1 x 10 tokens are 11 slots, though the binary number next to 1.1 is larger."""
    assert ExpertsSpec(num_experts=10, top_k=1, ffn_hidden_size=4, capacity_factor=1.1).capacity(100) == 11


@pytest.mark.parametrize("family", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("keys", [{}, {"shared_ffn_hidden_size": 24, "first_dense_layers": 1}])
def test_parameters_are_those_of_the_plan(family: dict[str, Any], keys: dict[str, Any]) -> None:
    """What the model says of itself is what one rank alone holds; shared out, a rank holds its part of the experts."""
    model = mixture(family, **keys)
    job = dense_job(model=model)
    [alone] = build_dense_training(job, "alone").programs
    held = sum(b.num_elements for b in alone.buffers.values() if b.kind is Kind.PARAMETER)
    assert held == job.model.num_parameters
    [shared] = dense_plan(model=model, dp=4, expert_degree=4).programs
    experts = job.model.num_expert_layers * 8 * (2 if family is GPT else 3) * H * F
    assert sum(b.num_elements for b in shared.buffers.values() if b.kind is Kind.PARAMETER) == held - experts * 3 // 4


@pytest.mark.parametrize("family", [GPT, LLAMA], ids=["gpt", "llama"])
def test_model_flop_are_those_of_the_plan(family: dict[str, Any]) -> None:
    """Where every slot is filled, a step without recomputation spends the FLOP that it needs, of active experts."""
    model = mixture(family, shared_ffn_hidden_size=24, first_dense_layers=1)
    job = dense_job(model=model, dp=2, m=3, expert_degree=2)
    [program] = build_dense_training(job, "flop").programs
    tasks = {name: sum(describe(program, task, op).flop for op in task.ops) for name, task in program.tasks.items()}
    assert 2 * sum(tasks[call.task] for call in program.calls) == pytest.approx(job.model_flop, rel=1e-12)


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_memory_of_experts_is_shared_out(zero_stage: int, ep: int) -> None:
    """Of 2, 4 and 12 bytes per parameter, shares: of experts over the ranks that hold the same, of the rest all."""
    dp = 8
    plain = mixture()
    job = dense_job(model=plain, dp=dp, expert_degree=ep, zero_stage=zero_stage, precision="bf16")
    [program] = build_dense_training(job, "memory").programs
    buffers = [b for b in program.buffers.values() if b.scope is Scope.PERSISTENT]
    held = {kind: sum(b.num_bytes for b in buffers if b.kind is kind) for kind in Kind}
    experts = job.model.num_layers * 8 * 3 * H * F
    dense = job.model.num_parameters - experts
    for kind, size, since in ((Kind.OPTIMIZER, 12, 1), (Kind.GRADIENT, 4, 2), (Kind.PARAMETER, 2, 3)):
        ranks, same = (dp, dp // ep) if zero_stage >= since else (1, 1)
        assert held[kind] == pytest.approx(size * (dense / ranks + experts / ep / same), rel=1e-3)
    assert memory_use(program).peak_bytes > sum(held.values()) - held[Kind.WORKSPACE]


# --- what is communicated ------------------------------------------------------------------------------------------


@settings(max_examples=examples(8))
@given(
    ep=st.sampled_from([2, 4]), replicas=st.sampled_from([1, 2]), m=st.integers(1, 2), b=st.integers(1, 2),
    factor=st.sampled_from([0.6, 1.0, 1.5]), zero_stage=st.sampled_from([0, 1, 2, 3]),
)  # fmt: skip
def test_ranks_send_slots_to_experts_and_back(
    ep: int, replicas: int, m: int, b: int, factor: float, zero_stage: int
) -> None:
    """Four times per layer and micro-batch (ep-1)/ep of E C h elements, and sums over those that hold the same.

    Experts go round a ring of dp/ep ranks, all else round one of dp ranks (2 (n-1)/n of the gradients; with ZeRO-1
    (n-1)/n of gradients and of parameters; with ZeRO-2 of gradients per micro-batch; with ZeRO-3 of parameters twice
    per micro-batch as well, but once of the ends), and the loss. Experts of which each rank has its own are not sent.
    """
    dp = ep * replicas
    model = mixture(capacity_factor=factor)
    job = dense_job(model=model, dp=dp, m=m, b=b, expert_degree=ep, zero_stage=zero_stage, precision="bf16")
    pricing = pricing_on("dgx-a100-80g", dp)
    found = sent_bytes(simulate(build_dense_training(job, "sent"), pricing), pricing)
    capacity = ceil(factor * S * b * 2 / 8)
    assert found["ep"] == pytest.approx(4 * 4 * m * (ep - 1) / ep * 8 * min(capacity, S * b) * H * 2)
    experts = 4 * 8 * 3 * H * F / ep
    dense = job.model.num_parameters - experts * ep
    ends = 2 * LLAMA["vocab_size"] * H + H  # a table, an output layer and the norm before it
    each = {0: 2 * 4, 1: 4 + 2, 2: 4 * m + 2, 3: (4 + 2 * 2) * m}[zero_stage]
    once = 2 * m * ends if zero_stage == 3 else 0
    sums = (dp - 1) / dp * (each * dense - once + 2 * 4) + (replicas - 1) / replicas * each * experts
    assert found["dp"] == pytest.approx(sums, rel=0.01)


def test_gradients_of_experts_are_summed_over_those_that_hold_the_same() -> None:
    """Of dp = 4 with ep = 2: experts over the other two, the router and all else over all four."""
    plan = dense_plan(model=mixture(), dp=4, expert_degree=2)
    check(plan)
    sums = [op for _, op, _ in collectives(plan) if op.kind is CollectiveKind.ALL_REDUCE and op.reads != ("loss",)]
    axes = {name: op.axes for op in sums for name in op.reads}
    assert {a for name, a in axes.items() if ".experts." in name} == {("dp",)}
    assert {a for name, a in axes.items() if ".experts." not in name} == {("dp", "ep")}
    assert {name.removesuffix(".gradient") for name in axes} == {
        name for name, b in plan.programs[0].buffers.items() if b.kind is Kind.PARAMETER
    }


def test_experts_alone_on_their_ranks_are_not_summed() -> None:
    """With ep = dp nobody else holds a rank's experts."""
    plan = dense_plan(model=mixture(), dp=4, expert_degree=4, zero_stage=1)
    reduced = {name for _, op, _ in collectives(plan) for name in op.reads if op.stream == "dp"}
    assert not [name for name in reduced if ".experts." in name]


def test_experts_are_gathered_among_those_that_hold_the_same() -> None:
    """Of dp = 8 with ep = 2: a layer's experts by the four that hold them, in a unit of their own, the rest by all."""
    plan = dense_plan(model=mixture(), dp=8, expert_degree=2, zero_stage=3)
    check(plan)
    axes = {op.name: op.axes for _, op, _ in collectives(plan) if op.stream == "dp" and op.name != "loss"}
    for label in ("all_gather", "regather", "reduce_scatter"):
        assert axes[f"{label}.layer0.experts"] == ("dp",)
        assert axes[f"{label}.layer0"] == ("dp", "ep")


@pytest.mark.parametrize(("group", "of_experts"), [(4, ("dp_shard",)), (2, None)])
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_groups_of_shards_hold_all_experts(zero_stage: int, group: int, of_experts: tuple[str, ...] | None) -> None:
    """Of a group's ranks those with the same experts share their shards; with nobody to share, experts stay whole."""
    plan = dense_plan(
        model=mixture(), dp=8, m=2, expert_degree=2, zero_stage=zero_stage, sharding=ShardingSpec(shard_degree=group)
    )
    check(plan)
    scatters = [op for _, op, _ in collectives(plan) if op.kind is CollectiveKind.REDUCE_SCATTER]
    axes = {any(".experts." in name for name in op.reads): op.axes for op in scatters}
    assert axes.get(True) == of_experts
    assert axes[False] == (*(of_experts or ()), "ep")
    sums = [op for _, op, calls in collectives(plan) if op.kind is CollectiveKind.ALL_REDUCE and calls == 1]
    assert {op.axes for op in sums if op.reads != ("loss",)} == {("dp",)}


def test_recomputation_exchanges_again() -> None:
    """A layer that is computed again in backward also sends its tokens again."""
    for recompute, times in (("none", 2), ("selective", 2), ("full", 4)):
        plan = dense_plan(model=mixture(), dp=2, expert_degree=2, recompute=recompute)
        backward = [op for task, op, _ in collectives(plan) if op.axes == ("ep",) and task.startswith("backward")]
        assert len(backward) == times * LLAMA["num_layers"]


# --- prices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"dp": 8}, {"dp": 4, "pp": 2, "m": 4}, {"dp": 4, "tp": 2, "sequence_parallel": True}])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_folding_changes_nothing(keys: dict[str, Any], ep: int) -> None:
    """Simulated once per class of ranks, or all of them: the same step."""
    plan = dense_plan(model=mixture(), expert_degree=ep, zero_stage=1, precision="bf16", **keys)
    pricing = pricing_on("dgx-a100-80g", 8, devices_per_node=4)
    times = [simulate(plan, pricing, fold=how).iteration_time_s for how in (fold, no_fold)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_more_slots_take_longer() -> None:
    """Padding is sent and multiplied: a step's time rises with the capacity factor."""
    times = []
    for factor in (0.5, 1.0, 2.0, 4.0):
        plan = dense_plan(model=mixture(capacity_factor=factor), dp=8, b=64, expert_degree=8, precision="bf16")
        times.append(simulate(plan, pricing_on("dgx-a100-80g", 8)).iteration_time_s)
    assert times == sorted(times)
    assert times[-1] > 1.05 * times[0]


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"model": LLAMA, "dp": 2, "expert_degree": 2}, "parallel.expert.degree", "the model has none"),
        ({"dp": 4, "expert_degree": 3}, "parallel.expert.degree", "do not share out 8 experts"),
        ({"dp": 16, "expert_degree": 16}, "parallel.expert.degree", "do not share out 8 experts"),
        ({"tp": 8, "model": LLAMA | {"num_kv_heads": 8, "experts": ExpertsSpec(**EXPERTS | {"ffn_hidden_size": 12})}},
         "parallel.tensor.degree", "experts.ffn_hidden_size 12"),
        ({"dp": 8, "expert_degree": 2, "zero_stage": 3, "sharding": ShardingSpec(local_degree=2)},
         "parallel.data.local_degree", "in two levels are not built"),
        ({"dp": 8, "expert_degree": 4, "zero_stage": 3, "sharding": ShardingSpec(shard_degree=2)},
         "parallel.data.shard_degree", "groups of 2 ranks do not hold all experts"),
        ({"dp": 2, "expert_degree": 2, "pp": 2, "m": 2, "schedule": "pipedream_2bw"}, "parallel.pipeline.schedule",
         "not built for ranks that share out"),
        ({"pp": 2, "schedule": "terapipe", "token_slices": (16, 16)}, "parallel.pipeline.token_slices", "slots"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused(keys: dict[str, Any], key: str, words: str) -> None:
    """Each with the key to change, the rule and a remedy."""
    with pytest.raises(SpecError, match=words) as refusal:
        dense_job(**{"model": mixture()} | keys)
    assert refusal.value.key == key
    assert refusal.value.remedy


def test_more_choices_than_experts_are_refused() -> None:
    """And as many dense layers as there are layers."""
    with pytest.raises(SpecError, match="9 of 8"):
        mixture(top_k=9)
    with pytest.raises(SpecError, match="4 of 4"):
        dense_job(model=mixture(first_dense_layers=4))


@pytest.mark.parametrize(
    ("rule", "factor", "top_k", "slots"),
    [
        ("even_share", 1.25, 2, 27), ("deepspeed", 1.25, 2, 27), ("tutel", 1.25, 2, 26), ("hetumoe", 1.25, 2, 28),
        ("even_share", 0.1, 1, 2), ("deepspeed", 0.1, 1, 8), ("tutel", 0.1, 1, 1), ("hetumoe", 0.1, 1, 2),
        ("tutel", 50.0, 2, 85),
    ],
)  # fmt: skip
def test_slots_are_counted_by_the_rule_of_each_system(rule: str, factor: float, top_k: int, slots: int) -> None:
    """85 tokens on 8 experts: the same factor gives other numbers, worked out by hand from each system's source."""
    keys: dict[str, Any] = {"capacity_rule": rule, "capacity_factor": factor, "top_k": top_k}
    assert ExpertsSpec(**EXPERTS | keys).capacity(85) == slots


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gate": "k_top_1", "top_k": 3}, "cannot be divided into 3 equal groups, one"),
        ({"gate": "k_top_1", "balance_loss": 0.1}, "without a balance loss"),
        ({"gate": "k_top_1", "routing": "balanced"}, "the routing is forced"),
        ({"gate": "switch"}, "switch chooses 1 of the experts, and top_k is 2"),
        ({"gate": "gshard", "top_k": 3}, "gshard chooses 2 of the experts"),
        ({"gate": "gshard", "routing": "balanced"}, "the routing is forced"),
        ({"gate": "base", "top_k": 1, "capacity_factor": 0.5}, "every token a slot, and experts have 0.5 times"),
        ({"gate": "base", "top_k": 1, "balance_loss": 0.1}, "without a balance loss"),
        ({"gate": "expert_choice", "balance_loss": 0.1}, "without a balance loss"),
        ({"gate": "hash", "top_k": 1, "balance_loss": 0.1}, "without a balance loss"),
        ({"dense_to_sparse": DenseToSparse()}, "gate top_k has no temperature"),
        ({"gate": "dense_to_sparse", "top_k": 1, "capacity_rule": "tutel"}, "counts top_k choices"),
        ({"num_groups": 2}, "gate top_k has no such groups"),
        ({"bias_update_rate": 0.1}, "gate top_k has no biases; leave it out, or write gate: bias"),
        ({"gate": "bias", "balance_loss": 0.1}, "without a balance loss"),
        ({"gate": "bias", "num_groups": 8}, "1 of 8 groups have 1 experts"),
        ({"gate": "group_limited", "num_groups": 3}, "8 experts cannot be divided into 3 equal groups"),
        ({"gate": "group_limited", "num_groups": 8}, "1 of 8 groups have 1 experts, and a token goes to 2"),
        ({"gate": "group_limited", "num_groups": 2, "top_groups": 3}, "write a number of 1 to 2"),
        (
            {"gate": "group_limited", "num_groups": 4, "top_groups": 2, "top_k": 3, "routing": "balanced"},
            "equally many of 3 experts from each of 2 groups",
        ),
        ({"gate": "expert_choice", "dispatch": "exact"}, "; write dispatch: slots"),
    ],
)
def test_gates_that_cannot_be_are_refused(keys: dict[str, Any], says: str) -> None:
    """Groups that are not equal, or too few, and choices that are forced already, are errors with their keys."""
    with pytest.raises(SpecError, match=says):
        ExpertsSpec(**EXPERTS | keys)


def test_biases_need_the_end_of_a_step() -> None:
    """Where the next step begins before a step is over, there is no moment at which biases could move."""
    with pytest.raises(SpecError, match="with pipedream_2bw the next step has begun by then"):
        dense_job(model=mixture(gate="bias"), pp=2, m=2, schedule="pipedream_2bw")


def test_biases_move_in_the_order_of_layers() -> None:
    """By number, not as text: layer 2 comes before layer 10, so stages that start at any layer have equal programs."""
    plan = dense_plan(model=mixture(gate="bias") | {"num_layers": 11})
    (program,) = plan.programs
    ops = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Compute)]
    moved = [op.name for op in ops if op.name.endswith(".router.bias.update")]
    assert moved == [f"layer{layer}.router.bias.update" for layer in range(11)]


def test_every_slot_is_filled_where_experts_choose() -> None:
    """Twice the even share makes every token reach twice as many experts on the mean, and no slot is empty."""
    spec = ExpertsSpec(**EXPERTS | {"gate": "expert_choice", "capacity_factor": 2.0})
    assert spec.reached(64) == 2.0 * spec.top_k
    plan = build_dense_training(dense_job(model=mixture(gate="expert_choice", capacity_factor=2.0)), "chosen")
    shares = [share for task in work_shares(plan, SAMPLE_AXES)[0].values() for share in task]
    assert max(share.empty_slots for share in shares) == 0.0


def test_a_hash_needs_no_router() -> None:
    """A table of words has no weights, no product of scores, and no gradient; its kernel reads the token ids."""
    plan = build_dense_training(dense_job(model=mixture(gate="hash", top_k=1)), "hash")
    program = plan.programs[0]
    kernels = {op.kernel for task in program.tasks.values() for op in task.ops if isinstance(op, Compute)}
    assert not any("router" in name for name in program.buffers)
    assert "route_hash" in kernels
    assert not any(kernel.startswith(("router", "route_backward")) for kernel in kernels)
    scored, hashed = (ExpertsSpec(**EXPERTS | {"top_k": 1, "gate": gate}) for gate in ("switch", "hash"))
    assert scored.num_parameters(16, 2) - hashed.num_parameters(16, 2) == 16 * scored.num_experts


def test_slots_follow_the_active_experts_of_a_cooling_gate() -> None:
    """With a factor of 1 slots are those of the mean active experts; the work of a step falls with the temperature."""
    found = []
    for step in (0, 500, 1000):
        schedule = DenseToSparse(start=1.0, end=0.1, decay_steps=1000, step=step)
        spec = ExpertsSpec(**EXPERTS | {"gate": "dense_to_sparse", "top_k": 1, "dense_to_sparse": schedule})
        active = schedule.active_experts(spec.num_experts)
        assert spec.reached(4096) == pytest.approx(active, rel=1e-3)
        assert 0.0 <= spec.capacity(4096) - round(4096 * active) / spec.num_experts < 1.0
        found.append(active)
    assert found == sorted(found, reverse=True)
    plan = build_dense_training(dense_job(model=mixture(gate="dense_to_sparse", top_k=1)), "cooling")
    shares = [share for task in work_shares(plan, SAMPLE_AXES)[0].values() for share in task]
    assert max(share.empty_slots for share in shares) < 0.05


def test_every_gate_has_a_definition_for_the_check_and_a_line_on_the_page() -> None:
    """The names that scenarios may write are those of the gates, each defined twice and described once."""
    page = (Path(__file__).parents[3] / "docs" / "scenario.md").read_text(encoding="utf-8")
    lines = {name for name in GATES if f"\n| `{name}` | " in page}
    assert set(get_args(ExpertGate)) == set(GATES) == set(DEFINITIONS) == lines
