"""Runs of several steps: beginning, middle, end; and the period of steps that do not wait for each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import no_fold
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.errors import CheckError
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Direction, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.plan.words.steps import drain, first_step, program_of_step, repeated
from tests.examples import examples
from tests.sim.engine.reference import ReferenceEngine
from tests.sim.jobs import GPT, dense_plan, op_times, pricing_on, run_textbook, textbook_plan

AIAO = {"schedule": "aiao", "virtual_stages": 2, "pp": 2, "dp": 2, "m": 4}


def aiao_plan(**keys: object) -> Plan:
    """Return the plan of a small transformer that defers a part of its synchronisation."""
    return dense_plan(**AIAO | {"deferred_sync": 0.4} | keys)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_run_begins_without_and_ends_with_what_is_deferred(stage: int) -> None:
    """The first step and the drain together are one step; every call of every step runs once, in order of steps."""
    plan = aiao_plan(zero_stage=stage, deferred_sync=None if stage else 0.4)
    first, last = first_step(plan), drain(plan)
    for program, begin, end in zip(plan.programs, first.programs, last.programs, strict=True):
        assert sorted(map(repr, (*begin.calls, *end.calls))) == sorted(map(repr, program.calls))
        assert end.calls
        ran = [(call, s - call.lag) for s in range(4) for call in program_of_step(program, s, 3).calls]
        assert len(set(ran)) == len(ran) == 3 * len(program.calls)
        assert {step for _, step in ran} == {0, 1, 2}
        assert program_of_step(program, 0, 3).calls == begin.calls
        assert program_of_step(program, 3, 3).calls == end.calls


def test_repeated_steps_have_micro_batches_of_their_own() -> None:
    """No instance of a buffer is shared between steps but those of the step's own and the persistent ones."""
    program = aiao_plan().programs[0]
    calls = repeated(program, 3).calls
    microbatches = [call.microbatch for call in calls if call.task == "forward.0"]
    assert microbatches == list(range(12))
    assert sum(call.microbatch is None for call in calls) == 3 * sum(c.microbatch is None for c in program.calls)


def test_check_refuses_calls_that_reach_further_back() -> None:
    """A call completes its own step or the one before."""
    plan = aiao_plan()
    calls = tuple(call._replace(lag=2 * call.lag) for call in plan.programs[0].calls)
    with pytest.raises(CheckError, match="completes the step 2 before its own"):
        check(replace(plan, programs=(replace(plan.programs[0], calls=calls), *plan.programs[1:])))


def test_check_refuses_what_a_first_step_would_miss() -> None:
    """A buffer of one step that only a deferred call writes is not there in the first."""
    plan = aiao_plan()
    program = plan.programs[0]
    calls = tuple(Call(c.task, c.microbatch, 1) if c.task == "forward.0" else c for c in program.calls)
    with pytest.raises(CheckError, match="before anything writes it"):
        check(replace(plan, programs=(replace(program, calls=calls), *plan.programs[1:])))


def test_check_refuses_messages_of_different_steps() -> None:
    """A message that one rank sends for the step before, its peer must receive for the step before."""
    x = Buffer("x", (1,), "float32", Kind.PARAMETER, Scope.PERSISTENT)
    send = Send("send", "pp", 1, Direction.FORWARD, ("x",), "pp_send")
    receive = Recv("receive", "pp", -1, Direction.FORWARD, ("x",), "pp_recv")
    plans = [
        Plan(
            "messages",
            Mesh((("pp", 2),)),
            tuple(
                Program({"pp": rank}, {"x": x}, {"t": Task("t", phase, (op,))}, (Call("t", lag=lag),))
                for rank, phase, op, lag in ((0, Phase.SEND, send, 1), (1, Phase.RECV, receive, received))
            ),
        )
        for received in (1, 0)
    ]
    check(plans[0])
    with pytest.raises(CheckError, match="None of the step before"):
        check(plans[1])


def test_check_refuses_collectives_of_different_steps() -> None:
    """Both ends of the pipeline sum the tied embedding's gradient of the same step."""
    plan = aiao_plan()
    program = plan.programs[0]
    calls = tuple(c._replace(lag=1) if c.task == "gradient_sync.tied" else c for c in program.calls)
    with pytest.raises(CheckError, match="steps before: 1 and 0"):
        check(replace(plan, programs=(replace(program, calls=calls), *plan.programs[1:])))


# --- the steady period -------------------------------------------------------------------------------------


def assert_steps_of_reference(run: SimulatedRun, plan: Plan, pricing: object) -> None:
    """Check a run's step op by op against a plain simulation of all steps; a receive's start is the message's own."""
    programs = tuple(repeated(program, run.num_steps) for program in plan.programs)
    whole = replace(plan, programs=programs)
    reference = ReferenceEngine(whole, pricing, no_fold(whole, pricing)).run()
    length = {rank: len(program.calls) for rank, program in run.programs.items()}
    shown = run.num_steps - 2
    expected = {key: span for key, span in reference.times.items() if key[1] // length[key[0]] == shown}
    origin_s = min(start_s for start_s, _ in expected.values())
    found = op_times(run)
    assert found.keys() == {(rank, call % length[rank], op) for rank, call, op in expected}
    for (rank, call, op), (start_s, end_s) in expected.items():
        program = run.programs[rank]
        task = program.tasks[program.calls[call % length[rank]].task]
        times_s = (start_s, end_s)[isinstance(task.ops[op], Recv) :]
        mine = found[rank, call % length[rank], op][-len(times_s) :]
        assert np.allclose(mine, np.array(times_s) - origin_s, rtol=0, atol=1e-9 * reference.makespan_s)


@pytest.mark.parametrize("keys", [{"zero_stage": 0}, {"zero_stage": 1, "deferred_sync": None}, {"dp": 1, "tp": 2}])
@pytest.mark.parametrize("coalesce", [True, False], ids=["coalesced", "step_by_step"])
def test_a_step_amid_others_equals_the_plain_simulation(*, keys: dict[str, int], coalesce: bool) -> None:
    """Ops of a transformer's step start and end as they do where all steps are simulated op by op."""
    plan = aiao_plan(model=GPT | {"num_layers": 4}, m=2, **keys)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=2)
    run = simulate(plan, pricing, fold=no_fold, coalesce=coalesce)
    assert_steps_of_reference(run, plan, pricing)


@settings(max_examples=examples(10), deadline=None)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zb_h2", "aiao"]), p=st.integers(1, 3), more=st.integers(0, 3),
    hop=st.sampled_from([0.0, 0.25]), sync=st.sampled_from([0.0, 3.0]),
)  # fmt: skip
def test_steps_without_barrier_equal_the_plain_simulation(
    *, schedule: str, p: int, more: int, hop: float, sync: float
) -> None:
    """Textbook steps that do not wait for each other are those of several steps in one program."""
    v = 2 if schedule == "aiao" else 1
    plan = textbook_plan(schedule, p, 2 * p - 1 + more, v, hop_s=hop, sync_s=sync, optimizer_barrier=_off(schedule))
    assert_steps_of_reference(simulate(plan, TextbookPricing(hop)), plan, TextbookPricing(hop))


def _off(schedule: str) -> bool | None:
    return None if schedule == "aiao" else False


@pytest.mark.parametrize(("schedule", "p", "m", "v"), [("zb_h2", 4, 8, 1), ("zb_v", 4, 8, 2), ("zb_h2", 2, 6, 1)])
def test_zero_bubble_without_barrier_has_no_bubble(schedule: str, p: int, m: int, v: int) -> None:
    """With equal parts the period is the work alone, the longest rank span; with a barrier it is the makespan."""
    free = run_textbook(schedule, p, m, v, optimizer_barrier=False)
    assert free.iteration_time_s == free.max_rank_span_s == 3 * m
    held = run_textbook(schedule, p, m, v)
    assert held.iteration_time_s == held.makespan_s > 3 * m
    assert held.max_rank_span_s == 3 * m


@settings(max_examples=examples(16), deadline=None)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "breadth_first", "zb_h1"]), p=st.integers(1, 4), more=st.integers(0, 4),
    hop=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_a_barrier_never_makes_steps_faster(*, schedule: str, p: int, more: int, hop: float) -> None:
    """Without contention the period is at least the busiest rank's work and at most the makespan from rest."""
    times = {"hop_s": hop, "forward_s": 1.5}
    free = run_textbook(schedule, p, p + more, optimizer_barrier=False, **times)
    held = run_textbook(schedule, p, p + more, **times)
    assert 3.5 * (p + more) <= free.iteration_time_s <= held.iteration_time_s == held.makespan_s
    assert free.iteration_time_s <= free.makespan_s + 1e-12


@pytest.mark.parametrize("keys", [{}, {"zero_stage": 1, "deferred_sync": None}, {"tp": 2}])
def test_time_without_barrier_adds_up_to_the_period(keys: dict[str, int]) -> None:
    """What a rank computes and what it waits for make up the period, on every rank; the timeline begins at 0."""
    plan = aiao_plan(**keys)
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=2))
    for parts in breakdowns(run).values():
        assert parts.busy_s["compute"] + sum(parts.exposed_s.values()) == pytest.approx(run.iteration_time_s, rel=1e-9)
    assert sum(critical_path(run).seconds.values()) == pytest.approx(run.iteration_time_s, rel=1e-9)
    shown = timeline(run)
    assert shown.start_s.min() == 0.0
    assert shown.end_s.max() == pytest.approx(run.makespan_s)
    shown.check_streams()
