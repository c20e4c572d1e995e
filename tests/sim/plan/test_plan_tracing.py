"""What traced plans communicate, against the papers' counts and bytes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from costmodels.kernels import KERNELS
from sim.plan.checking.check import check
from sim.plan.facts.description import buffer_spec, collective_bytes
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, CollectiveKind, Compute, Send
from sim.plan.words.program import Phase, Plan, Program
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_plan
from tests.sim.strategies import dense_plans

ELEMENT_BYTES = 2
MODEL = GPT | {"hidden_size": 128, "sequence_length": 64, "ffn_hidden_size": 512}
ACTIVATION = 64 * 3 * 128
"""Elements of the residual stream of a micro-batch of three sequences of MODEL."""

Counts = Counter[str]


def of_one_layer(model: dict[str, Any], task: str, **keys: Any) -> tuple[Counts, float]:
    """Return the collectives that one layer adds to a task, and the elements that each rank sends on a ring."""
    found: list[Counts] = []
    sent: list[float] = []
    for layers in (2, 3):
        (program,) = dense_plan(b=3, model=model | {"num_layers": layers}, **keys).programs
        counts: Counts = Counter()
        elements = 0.0
        for op in program.tasks[task].ops:
            if isinstance(op, Collective) and op.axes == ("tp",):
                counts[str(op.kind)] += 1
                passes = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
                elements += passes * collective_bytes(program, op) / ELEMENT_BYTES
        found.append(counts)
        sent.append(elements)
    return Counter(found[1]) - Counter(found[0]), (sent[1] - sent[0])


FORWARD_1D, FORWARD_SP = Counter(all_reduce=2), Counter(all_gather=2, reduce_scatter=2)
BACKWARD_SP = Counter(all_gather=4, reduce_scatter=2)


@pytest.mark.parametrize("model", [MODEL, MODEL | {"family": "llama", "dropout": 0.0, "attention": "flash"}])
@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "forward", "backward", "backward_volume"),
    [
        (False, "none", FORWARD_1D, FORWARD_1D, 4),
        (False, "selective", FORWARD_1D, FORWARD_1D, 4),
        (False, "full", FORWARD_1D, FORWARD_1D + FORWARD_1D, 8),
        (True, "none", FORWARD_SP, BACKWARD_SP, 6),
        (True, "selective", FORWARD_SP, BACKWARD_SP, 6),
        (True, "full", FORWARD_SP, BACKWARD_SP + FORWARD_SP, 10),
    ],
)
def test_layer_communicates_as_megatron_does(
    *, model: dict[str, Any], sequence_parallel: bool, recompute: str, forward: Counts, backward: Counts,
    backward_volume: int,
) -> None:  # fmt: skip
    """1D: 2 + 2 all_reduce; sequence-parallel: 2 + 2 gathers, 2 + 2 scatters, 2 re-gathers; full adds a forward.

    The volume is in units of (t-1)/t·s·b·h elements sent per rank: 4 forward, 4, 6, 8 or 10 backward.
    """
    keys = {"tp": 4, "sequence_parallel": sequence_parallel, "recompute": recompute}
    assert of_one_layer(model, "forward.0", **keys) == (forward, 4 * ACTIVATION)
    assert of_one_layer(model, "backward.0", **keys) == (backward, backward_volume * ACTIVATION)


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_loss_reduces_three_numbers_per_token(model: dict[str, Any]) -> None:
    """Vocabulary-parallel cross entropy sums the maximum, the exponentials and the target: s·b float32 each."""
    (program,) = dense_plan(tp=4, b=2, model=model).programs
    reduced = [op for op in program.tasks["forward.0"].ops if isinstance(op, Collective) and op.name.startswith("loss")]
    assert [op.reduction for op in reduced] == ["max", "sum", "sum"]
    assert [collective_bytes(program, op) for op in reduced] == [32 * 2 * 4] * 3
    assert not [op for op in program.tasks["backward.0"].ops if isinstance(op, Collective) and "loss" in op.name]


def test_one_rank_communicates_nothing() -> None:
    """Without parallelism a plan has kernels only."""
    (program,) = dense_plan(m=2).programs
    assert all(isinstance(op, Compute) for _, _, _, op in program.instances())


def gradients(program: Program) -> dict[str, int]:
    """Return the gradient buffers of a program's parameters, with their bytes."""
    return {
        f"{name}.gradient": program.buffers[f"{name}.gradient"].num_bytes
        for name, buffer in program.buffers.items()
        if buffer.kind is Kind.PARAMETER
    }


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans(24, most_stage=1))
def test_every_gradient_is_synchronised_once_and_every_parameter_updated_once(plan: Plan) -> None:
    """Over dp each gradient is in exactly one collective; one Adam touches each parameter; ZeRO-1 gathers each once."""
    for program in plan.programs:
        synchronised: Counts = Counter()
        gathered: Counts = Counter()
        updated: Counts = Counter()
        for _, _, task, op in program.instances():
            if isinstance(op, Collective) and op.axes == ("dp",):
                if op.kind is CollectiveKind.ALL_GATHER:
                    gathered.update(op.writes)
                elif task.name != "loss_sync":
                    synchronised.update(op.reads)
            if isinstance(op, Compute) and op.kernel == "adam":
                updated.update(op.writes)
        parameters = [name for name, buffer in program.buffers.items() if buffer.kind is Kind.PARAMETER]
        if plan.mesh.degree("dp") > 1:
            assert synchronised == Counter(gradients(program).keys())
        if gathered:
            assert gathered == Counter(parameters)
        else:
            assert all(updated[name] == 1 for name in parameters)


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans(24))
def test_derived_plans_pass_the_check_and_fit_their_kernels(plan: Plan) -> None:
    """Whatever is combined, the plan is valid, and every kernel's outputs have the shapes that it would write."""
    check(plan)
    for program in plan.programs:
        for task in program.tasks.values():
            for op in task.ops:
                if isinstance(op, Compute):
                    inputs = [buffer_spec(program, name) for name in op.reads]
                    written = [buffer_spec(program, name) for name in op.writes]
                    if op.kernel == "delay":  # computes nothing, so what it writes only orders others
                        assert {spec.shape for spec in written} <= {(0,)}, op.name
                    else:
                        assert list(KERNELS[op.kernel].outputs(inputs, op.attributes)) == written, op.name


BACKWARDS = (Phase.BACKWARD_INPUT, Phase.BACKWARD)


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans(24, most_stage=1))
def test_backward_writes_every_gradient_of_its_stage(plan: Plan) -> None:
    """The derived backward accumulates into the gradient of every parameter that its stage's forward reads."""
    for program in plan.programs:
        for task in program.tasks.values():
            if task.phase is not Phase.FORWARD:
                continue
            read = {n for op in task.ops for n in op.reads if program.buffers[n].kind is Kind.PARAMETER}
            backwards = [t for t in program.tasks.values() if t.stage == task.stage and t.phase in BACKWARDS]
            written = {name for backward in backwards for op in backward.ops for name in op.writes}
            assert {f"{name}.gradient" for name in read} <= written


def test_flop_of_a_step_are_those_of_the_model_plus_recomputation() -> None:
    """The kernels' FLOP add up to the model's; full recompute adds the layers' forward, selective core attention's."""
    keys = {"tp": 2, "pp": 2, "dp": 2, "m": 2, "b": 2}
    totals = {}
    for recompute in ("none", "selective", "full"):
        plan = dense_plan(recompute=recompute, **keys)
        totals[recompute] = sum(
            KERNELS[op.kernel]
            .work(
                [buffer_spec(program, n) for n in op.reads], [buffer_spec(program, n) for n in op.writes], op.attributes
            )
            .flop
            * len(plan.ranks_of(program))
            for program in plan.programs
            for _, _, _, op in program.instances()
            if isinstance(op, Compute)
        )
    sequences, s, h, layers, vocabulary = 8, 32, 64, 4, 128
    model = 72 * sequences * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert totals["none"] == pytest.approx(model, rel=1e-12)
    assert totals["selective"] - totals["none"] == pytest.approx(sequences * layers * 4 * s * s * h, rel=1e-12)
    forward = sequences * layers * (24 * s * h**2 + 4 * s * s * h)
    assert totals["full"] - totals["none"] == pytest.approx(forward, rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "share"),
    [({}, 1), ({"tp": 4}, 1), ({"tp": 4, "sequence_parallel": True}, 4), ({"tp": 4, "scatter_gather": True}, 4)],
)
def test_messages_carry_the_residual_stream_or_a_ranks_share_of_it(keys: dict[str, Any], share: int) -> None:
    """s·b·h elements per message; 1/t with sequence parallelism or scatter-gather."""
    plan = dense_plan(pp=2, m=2, b=3, **keys)
    for program in plan.programs:
        for _, _, _, op in program.instances():
            if isinstance(op, Send):
                assert sum(program.buffers[n].num_bytes for n in op.reads) == 2 * 32 * 3 * 64 // share


def test_selective_recomputation_keeps_no_scores() -> None:
    """Its forward leaves nothing of the core attention for backward but query, key and value."""
    (program,) = dense_plan(recompute="selective").programs
    read = {name for op in program.tasks["backward.0"].ops for name in op.reads}
    written = {name for op in program.tasks["forward.0"].ops for name in op.writes}
    kept = {name for name in read & written if ".attention." in name}
    assert kept == {f"layer{index}.attention.context" for index in range(4)}
