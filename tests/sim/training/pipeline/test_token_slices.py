"""Token slices as a schedule: what a plan of slices takes, computes and keeps."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.sent import sent_bytes
from sim.engine.running.memory import memory_use, peak_live_chunks
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.description import describe
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, Compute
from sim.plan.words.program import Phase, Plan
from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec
from sim.training.pipeline.terapipe import best_slices
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on, run_textbook
from tests.sim.training.pipeline.test_terapipe import latency_s, random_times


def sliced_plan(slices: tuple[int, ...], schedule: str = "terapipe", **keys: Any) -> Plan:
    """Return the plan of a pipeline of slices."""
    return dense_plan(schedule=schedule, token_slices=slices, **keys)


def run_on_v100(plan: Plan) -> SimulatedRun:
    """Return the simulation of a plan on one node of V100."""
    return simulate(plan, pricing_on("dgx-1-v100-16g", plan.mesh.size))


def cuts(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Return ways to cut a number of tokens into slices."""
    edges = st.lists(st.integers(1, total - 1), max_size=5, unique=True).map(lambda e: [0, *sorted(e), total])
    return edges.map(lambda e: tuple(b - a for a, b in pairwise(e)))


def flop_by_kernel(plan: Plan) -> dict[str, float]:
    """Return the FLOP of every kernel over a step of all ranks."""
    total: dict[str, float] = {}
    for program in plan.programs:
        for _, _, task, op in program.instances():
            if isinstance(op, Compute):
                total[op.kernel] = total.get(op.kernel, 0.0) + describe(program, task, op).flop
    return {kernel: flop for kernel, flop in total.items() if flop}


# --- time --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(16))
@given(slices=cuts(16), p=st.integers(1, 6), m=st.integers(1, 4), forward=st.integers(1, 3), backward=st.integers(1, 5))
def test_textbook_slices_take_the_flow_shop_form(
    slices: tuple[int, ...], p: int, m: int, forward: int, backward: int
) -> None:
    """Equal stages, no hop: m sum t + (P-1) max t for the forwards, and again for the backwards."""
    run = run_textbook("terapipe", p, m, forward_s=forward, input_s=backward, weight_s=0, token_slices=slices)
    expected = (forward + backward) * (m + (p - 1) * max(slices) / 16)
    assert run.makespan_s == pytest.approx(expected, rel=1e-12)


@settings(max_examples=examples(16))
@given(slices=cuts(16), p=st.integers(1, 6), m=st.integers(1, 4))
def test_orders_of_slices_take_equally_long_where_the_slices_are_equal(slices: tuple[int, ...], p: int, m: int) -> None:
    """Equal slices under Seq1F1B take what they take under TeraPipe; fewer of them are live."""
    equal = (1,) * len(slices)
    runs = [run_textbook(schedule, p, m, token_slices=equal) for schedule in ("terapipe", "seq_1f1b")]
    assert runs[0].makespan_s == pytest.approx(runs[1].makespan_s)
    live = [[peak_live_chunks(program) for program in run.programs.values()] for run in runs]
    assert live[0] == [m * len(equal)] * p
    assert live[1] == [min(p - 1 - r + len(equal), m * len(equal)) for r in range(p)]


@pytest.mark.parametrize(("sliced", "whole"), [("terapipe", "gpipe"), ("seq_1f1b", "1f1b")])
def test_one_slice_is_no_slice(sliced: str, whole: str) -> None:
    """Sequences in one slice run the ops of GPipe, or of 1F1B, at the same times."""
    with_slices, without = sliced_plan((32,), sliced, pp=2, m=3), dense_plan(schedule=whole, pp=2, m=3)
    runs = run_on_v100(with_slices), run_on_v100(without)
    assert runs[0].makespan_s == runs[1].makespan_s
    for rank in runs[0].programs:
        assert runs[0].programs[rank].tasks == runs[1].programs[rank].tasks
        ends = [sorted(e for t in run.task_times(rank) for row in t.ends_s.tolist() for e in row) for run in runs]
        assert ends[0] == ends[1]


@settings(max_examples=examples(24))
@given(data=st.data(), num_tokens=st.integers(1, 6), num_stages=st.integers(1, 8), copies=st.integers(1, 4))
def test_no_cut_of_several_sequences_is_better(
    data: st.DataObject, num_tokens: int, num_stages: int, copies: int
) -> None:
    """For sequences that are all cut alike, one after the other, the latency is the least of all cuts."""
    table = data.draw(random_times(num_tokens))

    def time_s(tokens: int, context: int) -> float:
        return table[tokens, context]

    best = best_slices(time_s, num_tokens, num_stages, num_sequences=copies)

    def of(slices: tuple[int, ...]) -> float:
        starts = [0, *accumulate(slices)]
        return latency_s([time_s(n, c) for n, c in zip(slices, starts, strict=False)] * copies, num_stages)

    every = [
        tuple(b - a for a, b in pairwise([0, *edges, num_tokens]))
        for mask in range(2 ** (num_tokens - 1))
        for edges in [[i for i in range(1, num_tokens) if mask >> (i - 1) & 1]]
    ]
    assert best.latency_s == min(of(slices) for slices in every)
    assert best.latency_s == of(best.slices)


# --- work and memory ---------------------------------------------------------------------------------------


@settings(max_examples=examples(6))
@given(slices=cuts(32), flash=st.booleans())
def test_slicing_changes_no_flop(slices: tuple[int, ...], flash: bool) -> None:
    """Every kernel's FLOP of a step are those of whole sequences, attention's included."""
    model = {**(LLAMA if flash else GPT), "num_layers": 2}
    expected = flop_by_kernel(dense_plan(model=model, pp=2, m=2))
    assert flop_by_kernel(sliced_plan(slices, model=model, pp=2, m=2)) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=examples(6))
@given(slices=cuts(32), schedule=st.sampled_from(["terapipe", "seq_1f1b"]), tp=st.sampled_from([1, 2]))
def test_plans_of_slices_hold_together(slices: tuple[int, ...], schedule: str, tp: int) -> None:
    """Messages meet, nothing is read before it is written, and the run comes to its end."""
    plan = sliced_plan(slices, schedule, pp=2, m=2, tp=tp, model={**GPT, "num_layers": 2})
    check(plan)
    assert run_on_v100(plan).makespan_s > 0


@pytest.mark.parametrize("schedule", ["terapipe", "seq_1f1b"])
def test_caches_hold_every_key_and_value_once(schedule: str) -> None:
    """A layer has one cache of keys and one of values, of all its tokens, and a gradient of each."""
    plan = sliced_plan((16, 8, 8), schedule, pp=2, m=1, b=2, model={**LLAMA, "num_layers": 2})
    for program in plan.programs:
        whole = [b for b in program.buffers.values() if b.shape == (32, 2, 4, 8) and b.dtype == "bfloat16"]
        assert len([b for b in whole if b.kind is Kind.ACTIVATION]) == 2
        assert len([b for b in whole if b.kind is Kind.WORKSPACE]) == 2


def test_fill_drain_keeps_what_one_forward_one_backward_lets_go() -> None:
    """Eight sequences of four slices: TeraPipe's peak grows with the batch, Seq1F1B's does not."""
    peaks = {
        (schedule, m): memory_use(sliced_plan((8,) * 4, schedule, pp=2, m=m, model=GPT).programs[0]).peak_bytes
        for schedule in ("terapipe", "seq_1f1b")
        for m in (4, 8)
    }
    assert peaks["terapipe", 8] > 1.2 * peaks["terapipe", 4]
    assert peaks["seq_1f1b", 8] == peaks["seq_1f1b", 4]
    assert peaks["seq_1f1b", 4] < peaks["terapipe", 4]


def test_slices_are_tasks_of_their_own() -> None:
    """Each slice has a forward and a backward; the backwards run from the last slice to the first."""
    program = sliced_plan((8, 24), pp=2, m=2).programs[0]
    mains = [
        (call.task, call.microbatch)
        for call in program.calls
        if program.tasks[call.task].phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    assert mains == [
        *(("forward.0@0", 0), ("forward.0@1", 0), ("forward.0@0", 1), ("forward.0@1", 1)),
        *(("backward.0@1", 1), ("backward.0@0", 1), ("backward.0@1", 0), ("backward.0@0", 0)),
    ]


# --- blocking messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
def test_blocking_messages_hold_up_computing(tp: int) -> None:
    """Every message is a broadcast in a group of two on the stream of computing; the step takes longer for it."""
    keys: dict[str, Any] = {"pp": 4, "m": 3, "tp": tp, "scatter_gather": tp > 1}
    plan, overlapped = sliced_plan((16, 16), blocking_messages=True, **keys), sliced_plan((16, 16), **keys)
    check(plan)
    messages = [
        op
        for program in plan.programs
        for task in program.tasks.values()
        for op in task.ops
        if task.phase in (Phase.SEND, Phase.RECV)
    ]
    assert len(messages) == 2 * 2 * 2 * 3  # slices, ways, ends, hops
    assert all(isinstance(op, Collective) and op.stream == "compute" and len(op.members) == 2 for op in messages)
    run, free = run_on_v100(plan), run_on_v100(overlapped)
    assert run.makespan_s > free.makespan_s
    pricing = pricing_on("dgx-1-v100-16g", plan.mesh.size)
    assert sent_bytes(run, pricing)["pp"] == pytest.approx(sent_bytes(free, pricing)["pp"])
    of_free = breakdowns(free)
    for rank, parts in breakdowns(run).items():
        assert parts.busy_s["compute"] == pytest.approx(of_free[rank].busy_s["compute"])
        assert parts.busy_s["compute"] + sum(parts.exposed_s.values()) == pytest.approx(run.makespan_s)
        assert parts.exposed_s["pp"] == pytest.approx(parts.busy_s["pp"])


@pytest.mark.parametrize("keys", [{"schedule": "1f1b"}, {"schedule": "seq_1f1b", "token_slices": (4, 4)}])
def test_blocking_messages_need_one_way_at_a_time(keys: dict[str, Any]) -> None:
    """Where neighbours send to each other in turn, both would wait for ever: such schedules are refused."""
    with pytest.raises(SpecError, match="both would wait") as error:
        PipelineSpec(degree=2, blocking_messages=True, **keys)
    assert error.value.key == "parallel.pipeline.blocking_messages"


# --- what cannot be ----------------------------------------------------------------------------------------


def test_a_plan_is_built_of_chosen_slices_only() -> None:
    """A schedule of slices without slices awaits a choice: it is no job to build, and a textbook refuses it."""
    with pytest.raises(ValueError, match="left to prices"):
        dense_plan(schedule="terapipe", pp=2, m=2)
    with pytest.raises(SpecError, match="a textbook has no prices"):
        run_textbook("seq_1f1b", 2, 4)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"schedule": "1f1b", "token_slices": (4, 4)}, "1f1b has no token_slices"),
        ({"schedule": "seq_1f1b", "token_slices": (4, 0)}, "1 token or more"),
    ],
)
def test_slices_and_schedules_that_do_not_go_together_are_refused(keys: dict[str, Any], words: str) -> None:
    """Slices need a schedule of slices, and a slice tokens."""
    with pytest.raises(SpecError, match=words) as error:
        PipelineSpec(degree=2, **keys)
    assert error.value.key == "parallel.pipeline.token_slices"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"token_slices": (16, 8)}, "24 tokens in all"),
        ({"token_slices": (15, 17), "tp": 2, "sequence_parallel": True}, "does not divide over 2"),
        ({"token_slices": (16, 16), "dp": 2, "zero_stage": 2}, "backwards of terapipe come in parts"),
    ],
)
def test_slices_that_do_not_fit_the_job_are_refused(keys: dict[str, Any], words: str) -> None:
    """Slices make up the sequence, and divide over the ranks that share them out."""
    with pytest.raises(SpecError, match=words):
        dense_job(schedule="terapipe", pp=2, **keys)
