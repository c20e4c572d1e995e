"""What sharded data parallelism sends and holds: the closed forms of its papers, over random jobs.

With P parameters, N replicas, m micro-batches and groups of g (N where there is one): DDP sends 2P(N-1)/N per rank and
step, ZeRO 1 as much in two halves, ZeRO 2 a reduce_scatter per synchronisation and a gather, ZeRO 3 two gathers and a
reduce_scatter per micro-batch, OSDP by operator what DDP or ZeRO 3 do; what is whole is held whole, what is sharded
as 1/g. Ranks that share sequences count as replicas, and share their shards
(Rajbhandari et al. 2020; Zhao et al. 2023; Zhang et al. 2022; Jiang et al. 2023).
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.plan.checking.check import check
from sim.plan.facts.description import collective_bytes
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind
from sim.plan.words.program import Plan, Program
from sim.training.data.operator_costs import parameters_of
from sim.training.data.operators import operator_slices
from sim.training.spec.job import DenseTraining, OsdpSpec
from sim.training.spec.parallelism.sharding import Choice, ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job

BYTES = {"fp32": (4, 4, 8), "bf16": (2, 4, 12)}
"""Of a parameter, its gradient and its optimizer state, by precision."""


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Return a small model of either family."""
    base = draw(st.sampled_from([GPT, LLAMA]))
    width = 16 * draw(st.integers(1, 3))
    return base | {
        "num_layers": draw(st.integers(1, 3)), "hidden_size": width, "num_heads": 4, "num_kv_heads": 4,
        "ffn_hidden_size": 8 * draw(st.integers(1, 5)), "vocab_size": 8 * draw(st.integers(1, 9)),
    }  # fmt: skip


@st.composite
def sharded_jobs(draw: st.DrawFn, stages: tuple[int, ...] = (0, 1, 2, 3)) -> DenseTraining:
    """Return a job of one of the ZeRO stages, in groups, gathered in stages or kept, where that goes."""
    stage = draw(st.sampled_from(stages))
    dp, cp = draw(st.sampled_from([2, 3, 4, 8])), draw(st.sampled_from([1, 1, 2, 4]))
    keys: dict[str, Any] = {}
    if stage >= 2:
        keys["gradient_sync"] = draw(st.sampled_from(["each_microbatch", "last_microbatch"]))
        keys["shard_degree"] = draw(st.sampled_from([None, *(g for g in (2, 4) if dp % g == 0 and g < dp)]))
    if stage == 3:
        group = keys["shard_degree"] or dp
        keys["local_degree"] = draw(st.sampled_from([None, *(k for k in (2, 4) if group % k == 0 and k < group)]))
        keys["reshard_after_forward"] = draw(st.booleans())
        keys["prefetch"] = draw(st.integers(0, 2))
    return dense_job(
        dp=dp, context_degree=cp, context_method=draw(st.sampled_from(["p2p", "all_gather"])),
        m=draw(st.integers(1, 3)), model=draw(models()) | ({"attention": "flash"} if cp > 1 else {}),
        precision=draw(st.sampled_from(list(BYTES))),
        recompute=draw(st.sampled_from(["none", "full"])), zero_stage=stage, sharding=ShardingSpec(**keys),
    )  # fmt: skip


def collectives(plan: Plan) -> Iterator[tuple[Collective, float]]:
    """Yield every collective of data parallelism that a rank takes part in, with the bytes that a ring sends."""
    (program,) = plan.programs
    for _, _, _, op in program.instances():
        if isinstance(op, Collective) and op.stream.startswith("dp") and op.name != "loss":
            parts = op.group_size(plan.mesh)
            turns = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
            yield op, turns * collective_bytes(program, op) * (parts - 1) / parts


def sent_by_kind(plan: Plan) -> dict[str, float]:
    """Return what a rank sends in a step, in bytes, by kind of collective."""
    sent: dict[str, float] = {}
    for op, num_bytes in collectives(plan):
        sent[op.kind] = sent.get(op.kind, 0.0) + num_bytes
    return sent


def held_bytes(program: Program) -> int:
    """Return what a rank holds all the time, in bytes, the loss not counted."""
    return sum(b.num_bytes for b in program.buffers.values() if b.scope is Scope.PERSISTENT and b.name != "loss")


@settings(max_examples=examples(24), deadline=None)
@given(job=sharded_jobs())
def test_bytes_sent_are_those_of_the_papers(job: DenseTraining) -> None:
    """Per rank and step, for every stage, group, synchronisation and gather."""
    plan = build_dense_training(job, "law")
    check(plan)
    parallel, sharding, m = job.parallel, job.parallel.sharding, job.num_microbatches
    parameter, gradient, _ = BYTES[job.training.precision]
    total, cp = job.model.num_parameters, parallel.context_degree
    n, g = cp * parallel.data_degree, cp * (sharding.shard_degree or parallel.data_degree)
    share, sent = (g - 1) / g, sent_by_kind(plan)
    if parallel.zero_stage == 0:
        assert sent == {"all_reduce": pytest.approx(2 * gradient * total * (n - 1) / n)}
        return
    syncs = m if parallel.zero_stage >= 2 and sharding.syncs_each_microbatch else 1
    expected = {"reduce_scatter": syncs * gradient * total * share, "all_gather": parameter * total * share}
    if parallel.zero_stage == 3:
        ends = total - job.model.num_layers * job.model.layer_parameters
        again = 0 if not sharding.reshards else total - ends
        hops = _of_two_hops(g, cp * sharding.local_degree if sharding.local_degree else None)
        expected["all_gather"] = m * parameter * (total + again) * hops
    if g < n:
        expected["all_reduce"] = 2 * gradient * total / g * (n // g - 1) / (n // g)
    gathers = _count(plan, CollectiveKind.ALL_GATHER)
    padding = {"all_gather": parameter * g * gathers if sharding.local_degree or total % g else 0}
    if total % g:  # the last rank's piece is filled up
        padding["reduce_scatter"] = gradient * g * _count(plan, CollectiveKind.REDUCE_SCATTER)
    if total % g or job.model.layer_parameters % g:  # layers may have pieces of their own
        padding["all_reduce"] = 2 * gradient * _count(plan, CollectiveKind.ALL_REDUCE)
    assert sent == {kind: pytest.approx(value, rel=1e-12, abs=padding.get(kind, 0)) for kind, value in expected.items()}


def _count(plan: Plan, kind: CollectiveKind) -> int:
    return sum(op.kind is kind for op, _ in collectives(plan))


def _of_two_hops(g: int, k: int | None) -> float:
    """Return how much of a unit a rank sends: (g-1)/g, or in two stages (g/k-1)/g and then (k-1)/k, the same sum."""
    return (g - 1) / g if k is None else (g // k - 1) / g + (k - 1) / k


@settings(max_examples=examples(24), deadline=None)
@given(job=sharded_jobs())
def test_bytes_held_are_those_of_the_papers(job: DenseTraining) -> None:
    """Parameters, gradients and optimizer state of a rank: whole or 1/g of each, up to padding."""
    (program,) = build_dense_training(job, "law").programs
    parameter, gradient, optimizer = BYTES[job.training.precision]
    total, parallel = job.model.num_parameters, job.parallel
    g, stage = parallel.sharding.shard_degree or parallel.data_degree, parallel.zero_stage
    g *= parallel.context_degree
    expected = total * sum(
        Fraction(size, g if stage >= since else 1) for size, since in ((optimizer, 1), (gradient, 2), (parameter, 3))
    )
    num_flat = sum(name.startswith(("shard.", "gradient_shard.")) for name in program.buffers)
    num_flat += sum(buffer.kind is Kind.OPTIMIZER for buffer in program.buffers.values()) if total % g else 0
    assert 0 <= held_bytes(program) - expected <= 8 * num_flat


@settings(max_examples=examples(16), deadline=None)
@given(data=st.data(), model=models(), dp=st.sampled_from([2, 4]), m=st.integers(1, 3))
def test_operators_send_and_hold_what_they_chose(data: st.DataObject, model: dict[str, Any], dp: int, m: int) -> None:
    """OSDP: 2 (N-1)/N of what is replicated; of what is sharded 3 (N-1)/N per micro-batch, and 1/N of it is held."""
    keys = {"dp": dp, "m": m, "model": model, "precision": "fp32"}
    (program,) = build_dense_training(dense_job(**keys, osdp=OsdpSpec(choices=())), "law").programs
    names, tied = parameters_of(program), model["tied_embeddings"]
    pieces = operator_slices(names, {}, tied_embeddings=tied)
    chosen = {p.operator for p in pieces if data.draw(st.booleans(), label=p.operator)}
    osdp = OsdpSpec(choices=tuple((name, Choice(1, 1)) for name in chosen))
    plan = build_dense_training(dense_job(**keys, osdp=osdp), "law")
    check(plan)
    sizes = {p.operator: sum(program.buffers[name].num_elements for name in p.parameters) for p in pieces}
    sharded = sum(sizes[name] for name in chosen)
    whole = sum(sizes.values()) - sharded
    unread = sum(
        sizes[name] for name in chosen if name == "embedding.position" or (name == "embedding.word" and not tied)
    )
    share = 4 * (dp - 1) / dp
    expected = {
        "all_reduce": 2 * whole * share, "all_gather": m * (2 * sharded - unread) * share,
        "reduce_scatter": m * sharded * share,
    }  # fmt: skip
    assert sent_by_kind(plan) == {kind: pytest.approx(value) for kind, value in expected.items() if value}
    assert 0 <= held_bytes(plan.programs[0]) - 16 * (whole + sharded / dp) <= 16 * 4 * len(pieces)
