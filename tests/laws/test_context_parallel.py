"""Context parallelism: what its plans compute, send and hold, against the dense plan and closed forms."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.plan.checking.check import check
from sim.plan.facts.description import collective_bytes, kernel_work, payload_bytes
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Send
from sim.plan.words.program import Plan, Program
from sim.training.sequence.unshared import Unshared
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import dense_job
from tests.sim.strategies import context_keys

METHODS = ("p2p", "all_gather", "ulysses", "two_level")


def context_jobs(methods: tuple[str, ...] = METHODS) -> st.SearchStrategy[DenseTraining]:
    """Draw small jobs, of one stage, whose sequences ranks share."""
    return context_keys(methods, most_stages=1, layouts=("zigzag",)).map(lambda keys: dense_job(**keys))


def checked_plan(job: DenseTraining) -> Plan:
    """Return the job's plan, which is a proper one."""
    plan = build_dense_training(job, "law")
    check(plan)
    return plan


def work(program: Program) -> dict[str, tuple[float, float]]:
    """Return FLOP, counted and executed, of every kernel that has some, in a step of one rank."""
    totals: dict[str, tuple[float, float]] = {}
    for _, _, _, op in program.instances():
        if isinstance(op, Compute) and (done := kernel_work(program, op)).flop:
            flop, executed = totals.get(op.kernel, (0.0, 0.0))
            totals[op.kernel] = flop + done.flop, executed + done.executed_flop
    return totals


@settings(max_examples=examples(12), deadline=None)
@given(job=context_jobs())
def test_ranks_share_the_work_of_the_dense_plan_evenly(job: DenseTraining) -> None:
    """Every kernel's FLOP, counted and executed, are those of the plan without it, a share on each rank."""
    degree = job.parallel.context_degree
    (whole,) = checked_plan(replace(job, parallel=replace(job.parallel, sequence=Unshared()))).programs
    expected = work(whole)
    (program,) = checked_plan(job).programs
    own = work(program)
    assert own.keys() == expected.keys()
    for kernel, (flop, executed) in expected.items():
        assert own[kernel] == pytest.approx((flop / degree, executed / degree)), kernel


@settings(max_examples=examples(12), deadline=None)
@given(job=context_jobs(("all_gather",)))
def test_keys_and_values_are_gathered_and_their_gradients_scattered(job: DenseTraining) -> None:
    """Per layer and micro-batch: two gathers of the whole sequence in every forward, two and two sums in backward."""
    model, parallel, training = job.model, job.parallel, job.training
    one = model.sequence_length * training.microbatch_size * model.num_kv_heads * model.head_size * 4
    calls = model.num_layers * job.num_microbatches * 2
    gathers = calls * (2 if training.recompute == "none" else 3)
    for program in checked_plan(job).programs:
        moved: Counter[CollectiveKind] = Counter()
        for _, _, _, op in program.instances():
            if isinstance(op, Collective) and op.stream == "cp":
                moved[op.kind] += collective_bytes(program, op)
        sizes = {CollectiveKind.ALL_GATHER: gathers, CollectiveKind.REDUCE_SCATTER: calls}
        assert moved == {kind: count * one // parallel.tensor.degree for kind, count in sizes.items()}


@settings(max_examples=examples(12), deadline=None)
@given(job=context_jobs(("p2p",)))
def test_keys_and_values_go_around_and_their_gradients_back(job: DenseTraining) -> None:
    """Of n ranks each sends n - 1 times: keys and values on in forward, back in backward, and their gradients back."""
    model, parallel, training = job.model, job.parallel, job.training
    own = model.sequence_length // parallel.context_degree * training.microbatch_size * model.num_kv_heads
    pair = 2 * own * model.head_size * 4 // parallel.tensor.degree
    passes = model.num_layers * job.num_microbatches * (parallel.context_degree - 1)
    for program in checked_plan(job).programs:
        sent: Counter[tuple[int, Direction]] = Counter()
        for _, _, _, op in program.instances():
            if isinstance(op, Send):
                sent[op.offset, op.direction] += payload_bytes(program, op.reads)
        forwards = passes * (1 if training.recompute == "none" else 2)
        back = {(-1, Direction.FORWARD): passes * pair, (-1, Direction.BACKWARD): passes * pair}
        assert sent == {(1, Direction.FORWARD): forwards * pair, **back}


@settings(max_examples=examples(8), deadline=None)
@given(job=context_jobs())
def test_gradients_are_summed_over_all_ranks_with_the_same_parameters(job: DenseTraining) -> None:
    """Gradients, and with ZeRO 1 updated parameters, travel among dp x cp ranks: all parameters once."""
    for program in checked_plan(job).programs:
        synced = [
            op
            for _, _, task, op in program.instances()
            if isinstance(op, Collective) and op.stream == "dp" and op.reads != ("loss",)
        ]
        shared = tuple(axis for axis, _ in job.parallel.sequence.axes)
        assert {op.axes for op in synced} == {("dp", *shared) if job.parallel.data_degree > 1 else shared}
        summed = [name for op in synced if op.kind is not CollectiveKind.ALL_GATHER for name in op.reads]
        assert sorted(summed) == sorted(name for name in program.buffers if name.endswith(".gradient"))
