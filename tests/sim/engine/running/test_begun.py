"""Of steps that run into each other the last is only begun, where that shows that the state comes back."""

import numpy as np
import pytest
from msgspec.structs import replace

from sim.engine.compiling.graph import PricedTask
from sim.engine.compiling.shape import shapes_of
from sim.engine.compiling.structure import compiled
from sim.engine.compiling.tables import KnownTasks
from sim.engine.folding.folding import no_fold
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running import simulate as simulating
from sim.engine.running.again import begins_again
from sim.engine.running.begun import first_calls
from sim.engine.running.rest_of_steps import RestOfSteps
from sim.engine.running.rows import edges
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.errors import CheckError
from sim.plan.words.calls import Calls
from sim.plan.words.program import Plan
from sim.training.steps.builder import build_dense_training
from tests.sim.jobs import GPT, as_array, dense_job, dense_plan, op_times, pricing_on, textbook_plan

KEYS = {"pp": 3, "dp": 2, "m": 90, "schedule": "aiao", "virtual_stages": 2, "model": GPT | {"num_layers": 6}}
PLAN = dense_plan(**KEYS, deferred_sync=0.6)
PRICING = pricing_on("dgx-a100-80g", PLAN.mesh.size, devices_per_node=1)
FORWARDS = {"recv_forward", "forward", "send_forward", "deferred_sync", "zero_gradients"}


@pytest.fixture
def to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs go on where the second step is seen in a state of the first."""
    monkeypatch.setattr(RestOfSteps, "pauses", ())


@pytest.mark.usefixtures("to_the_end")
def test_a_step_that_is_begun_says_what_a_whole_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third step has its first forwards alone, and a quarter of the events are spared."""
    run = simulate(PLAN, PRICING)
    monkeypatch.setattr("sim.engine.running.again.begins_again", lambda _: False)
    whole = simulate(PLAN, PRICING)
    assert run.num_steps == whole.num_steps == 3
    assert run.begun.keys() == run.programs.keys()
    assert whole.paced is not None
    assert not whole.begun
    for rank, count in run.begun.items():
        calls = Calls.of(run.programs[rank].calls)
        assert {name.split(".")[0] for name in calls[:count].counts()} <= FORWARDS
        assert 0 < count < len(calls) / 3
    assert run.num_events < 0.75 * whole.num_events
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-12)
    assert_same_ops(run, whole)


def assert_same_ops(run: SimulatedRun, whole: SimulatedRun) -> None:
    """Fail unless all ops of the step that is shown begin and end at the same moments."""
    found, expected = op_times(run), op_times(whole)
    keys = sorted(expected)
    assert sorted(found) == keys
    assert np.abs(as_array(found, keys) - as_array(expected, keys)).max() <= 1e-11 * whole.iteration_time_s


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_step_that_begins_or_ends_a_little_later_is_not_like_the_one_before(step: int) -> None:
    """Neither what a step leaves nor how the last one begins may differ, be it by a hundred millionth of a step."""
    run = simulate(PLAN, PRICING)
    assert begins_again(again(run))
    num_calls = len(run.programs[0].calls)
    changed = 2 * num_calls + 8 if step == 2 else (step + 1) * num_calls - 1
    (node,) = (node for rank, call, node, _ in run.graph.units if (rank, call) == (0, changed))
    for times_s in run.loop.times_s:
        times_s[node] += 1e-8 * run.iteration_time_s
    assert not begins_again(again(run))


def again(run: SimulatedRun) -> SimulatedRun:
    """Return a run that has kept nothing of what it has found out."""
    held = run.plan, run.folding, run.programs, run.priced, run.graph, run.loop, run.num_steps
    return SimulatedRun(*held, begun=run.begun, paced=run.paced)


def test_calls_that_are_left_out_must_begin_later_than_what_is_looked_at() -> None:
    """One that began a little before its step would begin before the step before the last is over."""
    run = simulate(PLAN, PRICING)
    calls = Calls.of(run.programs[0].calls)
    second = next(place for place, call in enumerate(calls) if call.task == "forward.3")
    (node,) = (node for rank, call, node, _ in run.graph.units if (rank, call) == (0, len(calls) + second))
    run.loop.times_s[0][node] = run.loop.starts_s[run.first_nodes[1]] - 0.01 * run.iteration_time_s
    assert not begins_again(again(run))


def test_a_last_step_is_whole_where_too_little_of_it_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that makes no forward of the last step does not tell when it has begun."""
    found = simulate(PLAN, PRICING)
    monkeypatch.setattr(simulating, "first_calls", lambda *_: found.begun | {4: 2})
    run = simulate(PLAN, PRICING)
    assert run.paced is not None
    assert not run.begun
    assert_same_ops(run, found)


def compile_begun(plan: Plan, *, all_received: bool = False) -> None:
    """Compile a plan with a program per rank whose steps are only begun."""
    pricing, programs = TextbookPricing(), dict(enumerate(plan.programs))
    prices = {
        rank: {
            name: PricedTask(tuple(pricing.price(plan, program, op, rank) for op in task.ops))
            for name, task in program.tasks.items()
        }
        for rank, program in programs.items()
    }
    shapes = {id(program): shapes_of(program) for program in plan.programs}
    folding, known = no_fold(plan, pricing), KnownTasks()
    compiled(plan, folding, programs, prices, shapes, known, coalesce=True, all_received=all_received)


@pytest.mark.parametrize(
    ("most", "expected"), [((2, 16), (2, 2)), ((16, 2), (8, 2)), ((12, 16), (12, 16)), ((0, 16), (0, 0))]
)
def test_ranks_make_no_call_that_waits_for_one_that_is_not_made(
    most: tuple[int, int], expected: tuple[int, int]
) -> None:
    """The second stage of a pipeline receives what the first sends. It may send what the first does not receive."""
    plan = textbook_plan("gpipe", 2, 4)
    programs = dict(enumerate(plan.programs))
    found = first_calls(plan.mesh, no_fold(plan, TextbookPricing()), programs, dict(enumerate(most)))
    assert (found[0], found[1]) == expected
    cut = [replace(program, calls=Calls.of(program.calls)[: found[rank]]) for rank, program in programs.items()]
    compile_begun(replace(plan, programs=tuple(cut)))


def test_whole_programs_receive_all_that_is_sent() -> None:
    """A message may be under way where a step is only begun, and nowhere else."""
    plan = textbook_plan("gpipe", 2, 4)
    first, second = plan.programs
    short = replace(plan, programs=(replace(first, calls=first.calls[:2]), replace(second, calls=())))
    compile_begun(short)
    with pytest.raises(CheckError, match="posts 0 forward receives along 'pp' from rank 0, which posts 1 sends"):
        compile_begun(short, all_received=True)


def test_stages_of_equal_content_share_their_calls_memory_and_layout() -> None:
    """Of six stages all but the first and the last make the same calls, and have the same ops at the same places."""
    job = dense_job(**KEYS | {"pp": 6, "model": GPT | {"num_layers": 12}}, deferred_sync=0.6)
    plan = build_dense_training(job, "six stages", shares_tasks=True)
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1))
    assert len(run.programs) == 6
    assert len({id(program.calls) for program in plan.programs}) == 3
    assert len({id(run.memory_of(rank)) for rank in run.programs}) == 3
    for paces_of in (run.paces_in_a_row, run.rank_paces):
        assert len({id(paces_of(rank).layout) for rank in run.programs}) == 3


def test_a_run_with_paces_knows_the_columns_of_its_graph() -> None:
    """They are those of the graph without added nodes, in which some edges lead to these."""
    run = simulate(PLAN, PRICING)
    assert run.paced is not None
    assert run.paced.added
    for known, found in zip(run.loop.edges, edges(run.graph), strict=True):
        assert np.array_equal(known, found)
    messages = run.graph.messages
    assert run.graph.message_columns.tolist() == [messages.sends, messages.journeys, messages.receives]
    assert run.graph.unit_columns.nodes.tolist() == [node for _, _, node, _ in run.graph.units]
