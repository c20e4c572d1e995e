"""Experts with a row for every choice: bytes, FLOP, waiting and folding follow from the routing."""

from typing import Any

import numpy as np
import pytest

from sim.engine.findings.breakdown import BUBBLE, EXPERT_WAIT, breakdowns
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.simulate import simulate
from sim.moe.balancing.replicas import shared_out
from sim.moe.choices import GroupLimit, forced_choices
from sim.moe.routing import Routing, of_ranks
from sim.moe.skew import Skew
from sim.moe.sources import Shares
from sim.plan.checking.check import check
from sim.plan.facts.description import describe
from sim.plan.facts.work_shares import work_shares
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Plan, Program
from sim.training.data.axes import SAMPLE_AXES
from sim.training.errors import SpecError
from sim.training.layers.rank_routing import busiest_routing
from sim.training.spec.job import ParallelSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.steps.builder import build_dense_training
from tests.sim.jobs import LLAMA, dense_job, dense_plan, pricing_on

H, F, S = LLAMA["hidden_size"], 48, LLAMA["sequence_length"]
HOT = Shares((0.6, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0))


def model(**keys: Any) -> dict[str, Any]:
    """Return a model with eight experts in every layer, whose tokens go to one each."""
    spec = {"num_experts": 8, "top_k": 1, "ffn_hidden_size": F, "dispatch": "exact", "routing": HOT}
    return LLAMA | {"experts": ExpertsSpec(**spec | keys)}


def exchanges(program: Program, kind: str = "forward") -> list[Collective]:
    """Return the exchanges of a task, in order: per layer counts, rows there, rows back."""
    return [
        op for op in program.tasks[f"{kind}.0"].ops
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL
    ]  # fmt: skip


def moved_bytes(program: Program) -> list[int]:
    """Return the bytes of every exchange of the forward but those of counts."""
    buffers = [program.buffers[op.reads[0]] for op in exchanges(program)]
    return [buffer.num_bytes for buffer in buffers if buffer.dtype != "int64"]


def flop_of(program: Program, kernel: str) -> float:
    """Return the FLOP of a kernel in the forward."""
    task = program.tasks["forward.0"]
    return sum(describe(program, task, op).flop for op in task.ops if isinstance(op, Compute) and op.kernel == kernel)


def skewed() -> Plan:
    """Return a plan in which each layer's ranks are loaded unevenly, each layer's otherwise."""
    keys: dict[str, Any] = {"dp": 8, "expert_degree": 4, "m": 2, "precision": "bf16"}
    return dense_plan(model=model(routing=Skew(zipf=1.5), top_k=2), **keys)


def test_every_rank_sends_and_computes_what_its_tokens_chose() -> None:
    """Tables of sizes, rows of products and FLOP are those of the routing, rank by rank and layer by layer."""
    job = dense_job(dp=4, expert_degree=4, m=2, model=model(routing=Skew(zipf=1.5), top_k=2))
    assert job.routing is not None
    plan, counts = build_dense_training(job, "exact"), job.routing.counts
    check(plan)
    assert [program.role for program in plan.programs] == [{"ep": place} for place in range(4)]
    for place, program in enumerate(plan.programs):
        found = exchanges(program)
        assert len(found) == 3 * LLAMA["num_layers"]
        for layer in range(LLAMA["num_layers"]):
            told, there, back = found[3 * layer : 3 * layer + 3]
            assert program.buffers[told.reads[0]].dtype == "int64"
            assert [list(line) for line in there.sizes] == of_ranks(counts[layer], 4).tolist()
            assert back.sizes == tuple(zip(*there.sizes, strict=True))
            assert program.buffers[there.reads[0]].shape == (1, 2 * S, H)
            assert program.buffers[there.writes[0]].shape[1] == counts[layer, :, 2 * place : 2 * place + 2].sum()
        rows = int(counts[:, :, 2 * place : 2 * place + 2].sum())
        assert flop_of(program, "ragged_matmul") == 2.0 * rows * H * 3 * F


def test_balanced_routing_needs_no_roles_and_costs_what_full_slots_do() -> None:
    """With even choices exact rows and slots send as many bytes and multiply as much, on one role."""
    keys: dict[str, Any] = {"dp": 4, "expert_degree": 4, "m": 2}
    even = dense_plan(model=model(routing="balanced"), **keys)
    slots = dense_plan(model=model(routing="balanced", dispatch="slots"), **keys)
    assert len(even.programs) == 1
    (program,), (slotted,) = even.programs, slots.programs
    assert flop_of(program, "ragged_matmul") == flop_of(slotted, "grouped_matmul")
    assert moved_bytes(program) == moved_bytes(slotted)


def test_folding_is_exact_where_ranks_are_loaded_unevenly() -> None:
    """One rank of each group stands for its like: equal times and memory, whether folded or not."""
    plan, pricing = skewed(), pricing_on("hgx-h100", 1)
    folded, whole = (simulate(plan, pricing, fold=how) for how in (fold, no_fold))
    assert (len(folded.programs), len(whole.programs)) == (4, 8)
    assert folded.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)
    of_folded, of_whole = breakdowns(folded), breakdowns(whole)
    for rank in folded.programs:
        assert folded.memory_of(rank).peak_bytes == whole.memory_of(rank).peak_bytes
        here, there = of_folded[rank], of_whole[rank]
        assert here.exposed_s == pytest.approx(there.exposed_s, rel=1e-6, abs=1e-12)


def test_ranks_wait_for_the_one_with_the_busy_expert() -> None:
    """The rank of the hot expert waits for nobody; all others wait, the longer the less they have to do."""
    big = model() | {"hidden_size": 1024, "num_heads": 8, "sequence_length": 1024}
    plan, pricing = dense_plan(dp=4, expert_degree=4, m=1, precision="bf16", model=big), pricing_on("hgx-h100", 1)
    run = simulate(plan, pricing)
    spent = breakdowns(run)
    waits = [spent[rank].exposed_s[EXPERT_WAIT] for rank in range(4)]
    assert waits[0] == pytest.approx(0.0, abs=1e-9)
    assert waits[0] < waits[1] < waits[2] < waits[3]  # 70, 20, 10 and 0 % of the rows
    parts = spent[3]
    assert parts.busy_s["compute"] + sum(parts.exposed_s.values()) == pytest.approx(run.iteration_time_s)
    even = dense_plan(
        dp=4, expert_degree=4, m=1, precision="bf16", model=big | {"experts": model(routing="balanced")["experts"]}
    )
    calm = simulate(even, pricing)
    assert breakdowns(calm)[0].exposed_s[EXPERT_WAIT] == 0.0
    assert calm.iteration_time_s < run.iteration_time_s
    assert breakdowns(calm)[0].exposed_s[BUBBLE] >= 0.0


def test_work_is_needed_or_repeated_as_without_roles() -> None:
    """Ranks that share experts update the same dense parameters: all but one repeat that, as on one role."""
    uneven = dense_plan(dp=4, expert_degree=4, m=2, model=model())
    shares = work_shares(uneven, SAMPLE_AXES)
    even = dense_plan(dp=4, expert_degree=4, m=2, model=model(routing="balanced"))
    (expected,) = work_shares(even, SAMPLE_AXES)
    for found in shares:
        assert {name: [tuple(op) for op in ops] for name, ops in found.items()} == {
            name: [tuple(op) for op in ops] for name, ops in expected.items()
        }


def test_forced_slots_drop_what_finds_none() -> None:
    """With slots the empty part of the work, and the model's FLOP, follow from the forced choices."""
    keys: dict[str, Any] = {"dp": 4, "expert_degree": 4, "m": 2}
    job = dense_job(model=model(dispatch="slots"), **keys)
    assert job.routing is not None
    slots = S // 8
    kept = np.minimum(job.routing.counts, slots).sum() / job.routing.counts.sum()
    assert job.kept_fraction == pytest.approx(kept, rel=1e-12)
    exact = dense_job(model=model(), **keys)
    assert exact.kept_fraction == 1.0
    assert job.model_flop < exact.model_flop
    plan = build_dense_training(job, "slots")
    shares = work_shares(plan, SAMPLE_AXES)[0]["forward.0"]
    products = [s for s, op in zip(shares, plan.programs[0].tasks["forward.0"].ops, strict=True)
                if isinstance(op, Compute) and op.kernel == "grouped_matmul"]  # fmt: skip
    assert all(share.empty_slots == pytest.approx(1.0 - kept, rel=1e-12) for share in products)


@pytest.mark.parametrize("keys", [{"capacity_factor": 2.0}, {"capacity_rule": "tutel"}])
def test_exact_sizes_have_no_capacity(keys: dict[str, Any]) -> None:
    """Keys that count slots would change nothing, and are refused."""
    with pytest.raises(SpecError, match=rf"model.experts.{next(iter(keys))}: it counts slots"):
        model(**keys)
    assert model(dispatch="slots", routing="balanced", **keys)


def test_learned_routing_cannot_be_exact_and_sources_must_be_ranks() -> None:
    """Both are errors that name the key and the remedy."""
    with pytest.raises(SpecError, match=r"model.experts.dispatch: .*only a run knows"):
        model(routing="learned")
    with pytest.raises(SpecError, match=r"model.experts.routing: .*at most 1/2"):
        dense_job(model=model(top_k=2))


BIG = {"hidden_size": 1024, "num_heads": 8, "sequence_length": 1024, "num_layers": 2}


@pytest.mark.parametrize(
    ("pp", "expert_degree", "nodes", "within"), [(1, 4, 1, 1e-9), (1, 8, 1, 2e-3), (2, 8, 1, 1e-2), (1, 8, 2, 1e-3)]
)
def test_a_step_of_busiest_ranks_takes_as_long(pp: int, expert_degree: int, nodes: int, within: float) -> None:
    """Where all ranks have the rows of the busiest, one stands for all of a stage, and the step takes as long.

    Inside a node to rounding. Pipeline messages and sums of gradients beside an exchange make a small difference.
    """
    keys: dict[str, Any] = {"pp": pp, "dp": 8, "expert_degree": expert_degree, "m": 2, "precision": "bf16"}
    keys["expert_nodes"] = nodes
    spec: dict[str, Any] = {"num_experts": 16, "top_k": 2, "routing": Skew(zipf=1.2)}
    pricing, times_s, peaks = pricing_on("hgx-h100", 8 * pp, devices_per_node=4), [], []
    for load in ("own", "busiest"):
        plan = dense_plan(model=model(**spec, rank_load=load) | BIG, **keys)
        check(plan)
        run = simulate(plan, pricing)
        times_s.append(run.iteration_time_s)
        peaks.append(max(run.memory_of(rank).peak_bytes for rank in run.programs))
    assert len(run.programs) == pp
    assert times_s[1] == pytest.approx(times_s[0], rel=within)
    assert peaks[1] >= peaks[0]


def test_busiest_ranks_have_the_rows_of_the_busiest_in_every_layer() -> None:
    """Layer by layer, the program has the rows of the rank with most; with sources of all replicas, of its group."""
    counts = np.zeros((2, 4, 4), dtype=np.int64)
    counts[0, :2], counts[0, 2:] = (4, 2, 1, 1), (2, 2, 2, 2)
    counts[1, :2], counts[1, 2:] = (2, 2, 2, 2), (0, 0, 3, 5)
    found = busiest_routing(Routing(counts), ParallelSpec(data_degree=4, expert_degree=2), first_layer=1)
    assert (found.rows(1), found.rows(2)) == ((8, 4), (6, 10))
    assert found.sizes(2) == ((0, 8), (0, 8))
    assert found.exchange(2, eight_bits=False).place == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dispatch": "slots", "routing": "learned"}, "slots are as many on every rank"),
        ({"replicas": shared_out(2, 4, 8)}, "ranks sum gradients with different ranks"),
    ],
)
def test_busiest_ranks_are_refused_where_they_are_not_alike(keys: dict[str, Any], words: str) -> None:
    """With slots there is nothing to level, and with replicas ranks do not only wait for each other at exchanges."""
    with pytest.raises(SpecError, match=words):
        model(rank_load="busiest", **keys)


def test_rows_travel_to_experts_in_eight_bits_and_back_in_sixteen() -> None:
    """A byte per element and four for the row's scale: tokens forward, gradients of outputs backward; two else."""
    keys: dict[str, Any] = {"dp": 4, "expert_degree": 4, "m": 1, "precision": "bf16"}
    plan = dense_plan(model=model(top_k=2, routing=Skew(), dispatch_precision="fp8") | {"num_layers": 1}, **keys)
    check(plan)
    for program in plan.programs:
        for kind in ("forward", "backward"):
            sent = [program.buffers[op.reads[0]] for op in exchanges(program, kind)]
            rows = [buffer for buffer in sent if buffer.dtype != "int64"]
            assert [buffer.num_bytes // buffer.shape[1] for buffer in rows] == [H, 4, 2 * H]


def test_a_token_crosses_to_a_node_once_and_comes_back_once() -> None:
    """Bytes between nodes are those of tokens times other nodes that they choose in; to every expert they are more."""
    keys: dict[str, Any] = {"top_k": 4, "gate": "group_limited", "num_groups": 4, "top_groups": 2}
    keys["routing"] = Skew(zipf=1.0)
    crossing = {}
    for nodes in (1, 4):
        job = dense_job(dp=8, expert_degree=8, expert_nodes=nodes, m=1, model=model(**keys) | {"num_layers": 1})
        plan = build_dense_training(job, "relayed")
        check(plan)
        sent = [op for op in exchanges(plan.programs[0]) if plan.programs[0].buffers[op.reads[0]].shape[-1] == H]
        crossing[nodes] = [
            sum(rows for s, line in enumerate(op.sizes) for t, rows in enumerate(line) if s // 2 != t // 2)
            for op in sent
        ]
        assert job.routing is not None
        choices = [forced_choices(counts, S, GroupLimit(4, 2, 2)) // 2 for counts in job.routing.counts[0].tolist()]
        copies = [[len({*row} - {source // 2}) for row in chosen.tolist()] for source, chosen in enumerate(choices)]
        experts = [int((chosen != source // 2).sum()) for source, chosen in enumerate(choices)]
    assert crossing[4] == [np.sum(copies), 0, 0, np.sum(copies)]
    assert crossing[1] == [sum(experts)] * 2
    assert 2 * crossing[4][0] == crossing[1][0]


@pytest.mark.parametrize(
    ("nodes", "keys", "words"),
    [
        (3, {}, "4 ranks that share out experts do not lie on 3 nodes, two or more on each; write 1 or 2"),
        (4, {}, "do not lie on 4 nodes"),
        (2, {"dispatch": "slots", "routing": "balanced"}, "slots are sent to every expert"),
        (2, {"replicas": shared_out(2, 4, 8)}, "copies of experts on several ranks are not built"),
        (2, {"gate": "group_limited", "num_groups": 1}, "1 groups of experts do not lie on 2 nodes"),
    ],
)
def test_nodes_that_cannot_hand_tokens_on_are_refused(nodes: int, keys: dict[str, Any], words: str) -> None:
    """Nodes are equal, have several ranks and whole groups of experts, and rows are exact."""
    with pytest.raises(SpecError, match=words):
        dense_job(dp=4, expert_degree=4, expert_nodes=nodes, m=1, model=model(**keys))


def test_eight_bits_are_refused_with_slots() -> None:
    """Slots are exchanged between sharded dimensions, for which no scales travel."""
    with pytest.raises(SpecError, match="eight bits are built for rows of exact sizes"):
        model(dispatch="slots", routing="learned", dispatch_precision="fp8")
