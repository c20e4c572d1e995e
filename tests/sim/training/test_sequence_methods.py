"""Methods that share sequences: bytes per rank against closed forms, memory, and wrong numbers of ranks.

The bytes are those of a prototype in numpy whose ranks passed real messages: attention of 2 sequences of 32 tokens, 8
heads of 4 channels, over 4 ranks in float64, forward and backward, against dense attention.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import pytest

from sim.engine.findings.breakdown import breakdowns
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.facts.description import collective_bytes, kernel_work, payload_bytes
from sim.plan.functions.rows import Rows
from sim.plan.words.buffer import Kind
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Send
from sim.plan.words.program import Phase, Plan, Program
from sim.training.errors import SpecError
from sim.training.sequence.registry import SEQUENCE_METHODS, SequenceMethodName, sequence_method
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on

MODEL = GPT | {
    "num_layers": 1, "hidden_size": 32, "num_heads": 8, "num_kv_heads": 8, "ffn_hidden_size": 128,
    "sequence_length": 32, "dropout": 0.0,
}  # fmt: skip
BATCH, RANKS = 2, 4
A = BATCH * 32 * 32 * 8
"""Bytes of one activation of all ranks."""


def layer_plan(attention: str = "flash", **keys: Any) -> Plan:
    """Return the plan of a model of one layer whose sequences four ranks share, in float64."""
    keys = {"model": MODEL | {"attention": attention}, "b": BATCH, "precision": "fp64", "context_degree": RANKS} | keys
    return dense_plan(**keys)


def sent_bytes(plan: Plan, program: Program, op: Op) -> float:
    """Return the bytes that a rank sends in an op of context parallelism, collectives as rings."""
    if isinstance(op, Send) and op.axis.startswith("cp"):
        return payload_bytes(program, op.reads)
    if isinstance(op, Collective) and op.stream.startswith("cp"):
        passes, group = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1, op.group_size(plan.mesh)
        return passes * (group - 1) / group * collective_bytes(program, op)
    return 0.0


def sent(plan: Plan) -> tuple[float, float]:
    """Return what every rank sends for a layer forward and backward."""
    found = set()
    for program in plan.programs:
        of_phase = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD), 0.0)
        for task in program.tasks.values():
            for op in task.ops:
                if task.phase in of_phase:
                    of_phase[task.phase] += sent_bytes(plan, program, op)
        found.add((of_phase[Phase.FORWARD], of_phase[Phase.BACKWARD]))
    (only,) = found
    return only


def test_ulysses_sends_the_bytes_of_its_closed_form() -> None:
    """Four exchanges of a rank's own tokens forward and four backward: 4(N-1)/N^2 A each; scores kept or not."""
    for attention in ("flash", "core"):
        assert sent(layer_plan(attention, context_method="ulysses")) == (12288, 12288)
    assert 4 * (RANKS - 1) / RANKS**2 * A == 12288


def test_a_ring_sends_the_bytes_of_its_closed_form() -> None:
    """Keys and values go forward N-1 times, and with the sums of their gradients back as often.

    The prototype began the sums at their own rank, so they took N steps home: 2/N A more, 57344. Here backward begins
    with the block that a rank held last, and the sums are home one step earlier.
    """
    for layout in ("zigzag", "contiguous"):
        full = layer_plan(model=MODEL | {"attention": "flash", "causal": False}, context_layout=layout)
        assert sent(full) == sent(layer_plan(context_layout=layout))
    forward, backward = sent(layer_plan(context_method="p2p"))
    assert forward == 24576 == 2 * (RANKS - 1) / RANKS * A
    assert backward + 2 / RANKS * A == 57344
    assert backward == 4 * (RANKS - 1) / RANKS * A


def test_gathering_sends_the_bytes_of_its_closed_form() -> None:
    """Two gathers forward; in backward two gathers and two reduce_scatters."""
    forward, backward = sent(layer_plan(context_method="all_gather"))
    assert forward == 2 * (RANKS - 1) / RANKS * A
    assert backward == 2 * forward


def test_ring_self_attention_sends_the_bytes_of_its_closed_form() -> None:
    """Keys and values around the ring forward and backward, and an all_reduce each of their whole gradients."""
    forward, backward = sent(layer_plan("core", context_method="ring_self_attention"))
    assert forward == 24576 == 2 * (RANKS - 1) / RANKS * A
    assert backward == 73728 == 6 * (RANKS - 1) / RANKS * A


def test_two_levels_send_the_bytes_of_their_closed_form() -> None:
    """Four exchanges inside groups of 2; around 2 groups keys and values of half of the heads, as a ring of 2 does."""
    forward, backward = sent(layer_plan(context_method="two_level"))
    inside, ring = 4 * (1 / 2) * A / RANKS, 2 * (2 - 1) * A / RANKS
    assert (forward, backward) == (inside + ring, inside + 2 * ring)


def test_two_levels_need_groups() -> None:
    """The inner degree divides the degree, is smaller, and divides the heads of keys and values."""
    for degree, inner, remedy in ((4, 4, "write 2"), (8, 3, "write 2"), (8, 8, "write 4"), (3, 3, "method: ulysses")):
        with pytest.raises(SpecError, match=rf"parallel.context.inner_degree: {degree} ranks are not.*{remedy}"):
            sequence_method("two_level", degree, {"inner_degree": inner})
    with pytest.raises(SpecError, match=r"inner_degree: 8 ranks do not share out evenly the 4 heads.*write 4, or"):
        dense_job(model=LLAMA, context_degree=16, context_method="two_level", context_inner_degree=8)
    with pytest.raises(SpecError, match="sequence_length 36 does not divide into 8 blocks"):
        dense_job(model=LLAMA | {"sequence_length": 36}, context_degree=8, context_method="two_level",
                  context_inner_degree=4)  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCE_METHODS)
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_chunks_of_ranks_are_the_rows_that_kernels_know(name: SequenceMethodName, layout: str) -> None:
    """What the dense model of a check takes for a rank's tokens is where kernels place them."""
    own = signature(SEQUENCE_METHODS[name]()).parameters
    method = sequence_method(name, 6, {"layout": layout} if "layout" in own else {})
    rows, num_chunks, mesh = method.rows(48), sum(map(len, method.chunks)), Mesh(method.axes)
    assert {len(own) for own in method.chunks} == {num_chunks // 6}
    for rank, chunks in enumerate(method.chunks):
        size, where = 48 // num_chunks, mesh.coordinates(rank)
        tokens = [token for chunk in chunks for token in range(chunk * size, (chunk + 1) * size)]
        assert tokens == [place_of(rows, mesh, where, row) for row in range(rows.num_tokens)]


def place_of(rows: Rows, mesh: Mesh, where: Mapping[str, int], row: int) -> int:
    """Return the place in its sequence of a row of a rank, by the definition of rows."""
    for place, axis in enumerate(rows.cut_over):
        row += where[axis] * rows.num_tokens * mesh.degree(*rows.cut_over[place + 1 :])
    if not rows.dealt_over:
        return row
    degree, index = mesh.degree(rows.dealt_over), where[rows.dealt_over]
    chunk = rows.num_total // (2 * degree)
    return row + (index if row < chunk else 2 * degree - 2 - index) * chunk


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_ring_self_attention_keeps_a_share_of_the_scores(dropout: float) -> None:
    """A rank keeps b a s^2 / N probabilities a layer, dropped ones and a mask of a byte each, as Ulysses' heads do.

    Another layer takes 1/N of the activations that it takes alone, but for what lives at one moment of the peak.
    """

    def grown(degree: int, method: str = "p2p") -> int:
        keys = {"context_degree": degree, "context_method": method, "zero_stage": 0}
        plans = [
            layer_plan(model=MODEL | {"attention": "core", "num_layers": n, "dropout": dropout}, **keys) for n in (1, 2)
        ]
        kept = [memory_use(plan.programs[0]).peak_by_kind_bytes[Kind.ACTIVATION] for plan in plans]
        return kept[1] - kept[0]

    own, scores = grown(RANKS, "ring_self_attention"), BATCH * 8 * 32 * 32 // RANKS
    assert own == grown(RANKS, "ulysses") == pytest.approx(grown(1) / RANKS, rel=0.02)
    assert own > scores * (8 + 8 + 1 if dropout else 8)
    (program,) = layer_plan("core", context_method="ring_self_attention").programs
    assert program.buffers["layer0.attention.softmax"].num_bytes == 8 * scores


def attention_work(program: Program) -> tuple[float, float]:
    """Return the FLOP of a step's attention kernels, counted and executed."""
    works = [
        kernel_work(program, op)
        for _, _, _, op in program.instances()
        if isinstance(op, Compute) and op.kernel.startswith("flash_attention")
    ]
    return sum(work.flop for work in works), sum(work.executed_flop for work in works)


@pytest.mark.parametrize("method", ["p2p", "all_gather"])
def test_blocks_share_out_a_causal_mask_unevenly(method: str) -> None:
    """Of n ranks with a block each, rank i computes i + 1/2 of the n^2/2 blocks that the mask leaves.

    Chunks in zigzag give every rank n/2 of them, so the last rank takes (2n - 1)/n as long. The counted FLOP are those
    of the full square in all, and what is sent does not change.
    """
    even = layer_plan(context_method=method)
    plan = layer_plan(context_method=method, context_layout="contiguous")
    assert [program.role for program in plan.programs] == [{"cp": index} for index in range(RANKS)]
    counted, executed = zip(*map(attention_work, plan.programs), strict=True)
    of_all = [RANKS * work for work in attention_work(even.programs[0])]
    assert sum(counted) == pytest.approx(of_all[0])
    assert executed == pytest.approx([(2 * index + 1) / RANKS**2 * of_all[1] for index in range(RANKS)])
    assert executed[-1] * RANKS / of_all[1] == pytest.approx((2 * RANKS - 1) / RANKS)
    assert sent(plan) == sent(even)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("method", ["p2p", "all_gather", "two_level"])
def test_a_full_mask_is_shared_out_evenly_by_all_layouts(method: str, layout: str) -> None:
    """All ranks run one program, which executes 1/n of the full square: twice what a causal mask leaves."""
    model = MODEL | {"attention": "flash"}
    plan = layer_plan(model=model | {"causal": False}, context_method=method, context_layout=layout)
    (program,) = plan.programs
    counted, executed = attention_work(program)
    of_causal = attention_work(layer_plan(model=model, context_method=method).programs[0])
    assert counted == of_causal[0]
    assert executed == pytest.approx(2 * of_causal[1])
    assert not [op for _, _, _, op in program.instances() if isinstance(op, Compute) and op.kernel == "take_chunks"]


@pytest.mark.parametrize("method", ["p2p", "all_gather"])
def test_ranks_with_early_blocks_wait_for_the_last(method: str) -> None:
    """Where attention is most of the work, blocks make a step longer than zigzag does, and early ranks idle more."""
    model = LLAMA | {"num_layers": 1, "hidden_size": 256, "sequence_length": 65536}
    keys: dict[str, Any] = {"model": model, "context_degree": 4, "context_method": method, "precision": "bf16"}
    runs = [
        simulate(dense_plan(**keys, context_layout=layout), pricing_on("hgx-h100", 4, devices_per_node=4))
        for layout in ("zigzag", "contiguous")
    ]
    even, uneven = (run.iteration_time_s for run in runs)
    assert 1.3 * even < uneven < 1.75 * even
    computing = [spent.busy_s["compute"] for spent in breakdowns(runs[1]).values()]
    assert computing == sorted(computing)
    assert computing[0] < 0.5 * computing[-1]
    assert computing[-1] > 0.9 * uneven


@pytest.mark.parametrize(("tp", "kv", "degree", "remedy"), [
    (1, 2, 4, "write 2, or"), (2, 4, 4, "write 2, or"), (1, 3, 2, "write method: p2p"), (4, 4, 2, "write method: p2p"),
])  # fmt: skip
def test_ulysses_refuses_more_ranks_than_heads_of_keys(tp: int, kv: int, degree: int, remedy: str) -> None:
    """The heads of one tensor-parallel rank are shared out; the error names the largest degree that divides them."""
    model = LLAMA | {"num_heads": 12, "num_kv_heads": kv, "hidden_size": 96, "attention": "flash"}
    with pytest.raises(SpecError, match=f"{degree} ranks do not share out evenly the {kv // tp} head.*{remedy}"):
        dense_job(model=model, tp=tp, context_degree=degree, context_method="ulysses")


def test_ring_self_attention_refuses_fused_attention() -> None:
    """It keeps scores, of which fused attention keeps none."""
    with pytest.raises(SpecError, match=r"model.attention: .* keeps the scores of all keys.*write attention: core"):
        dense_job(model=LLAMA, context_degree=2, context_method="ring_self_attention")


def test_ulysses_refuses_blocks_that_are_not_equal() -> None:
    """A sequence makes one block per rank, and a block is shared out to the ranks of sequence parallelism."""
    with pytest.raises(SpecError, match="sequence_length 30 does not divide into 4 blocks, one per rank"):
        dense_job(model=MODEL | {"sequence_length": 30}, context_degree=4, context_method="ulysses")
    with pytest.raises(SpecError, match="a rank's 3 tokens do not divide over 2 tensor-parallel ranks"):
        dense_job(
            model=MODEL | {"sequence_length": 6}, tp=2, sequence_parallel=True, context_degree=2,
            context_method="ulysses",
        )  # fmt: skip
