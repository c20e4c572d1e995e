"""Of steps in a row only the first runs to its end, where the second comes to a state of the first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.running.chains import NONE
from sim.engine.running.loop import EventLoop
from sim.engine.running.rest_of_steps import RestOfSteps, _State
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from tests.examples import examples
from tests.sim.engine.running.test_begun import KEYS
from tests.sim.jobs import dense_plan, pricing_on
from tests.sim.strategies import NODES, aiao_keys

LAW = settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))


def run_with(tp: int) -> SimulatedRun:
    """Return the run of the plan of begun steps with tensor parallelism of a degree."""
    plan = dense_plan(**KEYS, tp=tp, sequence_parallel=tp > 1, deferred_sync=0.6)
    return simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=tp))


def releases(run: SimulatedRun) -> list[float]:
    """Return when entries let their blocks go."""
    return [moment_s for block in run.graph.blocks.values() for moment_s in block.released_s]


def assert_as_run(run: SimulatedRun) -> None:
    """Fail unless everything that a run without pauses notes is what this one has."""
    found, by_key = [*run.loop.times_s, np.array(releases(run))], run.loop.shared_spans
    loop = EventLoop(run.graph)
    loop.run()
    slack_s = 1e-11 * run.makespan_s
    for times_s, expected_s in zip(found, [*loop.times_s, np.array(releases(run))], strict=True):
        assert np.abs(times_s - expected_s).max(initial=0.0) <= slack_s
    spans, expected = (table[np.lexsort((table[:, 1], table[:, 0]))] for table in (by_key, loop.shared_spans))
    assert np.array_equal(spans[:, 0], expected[:, 0])
    assert np.abs(spans - expected).max(initial=0.0) <= slack_s


@pytest.mark.parametrize("tp", [1, 2])
def test_the_rest_of_steps_is_as_it_runs(tp: int) -> None:
    """Nodes, blocks and speeds on links are those of a run of all events, two fifths of which are spared.

    With tensor parallelism blocks of both steps wait for several entries.
    """
    run = run_with(tp)
    assert run.paced is not None
    assert run.paced.comes_back
    assert run.begun
    assert_as_run(run)
    loop = EventLoop(run.graph)
    loop.run()
    assert run.num_events < 0.65 * loop.num_events


@LAW
@given(keys=aiao_keys(), node=st.sampled_from(NODES), per_node=st.sampled_from([1, 2, 4, 8]))
def test_the_rest_of_any_steps_is_as_it_runs(keys: dict[str, Any], node: str, per_node: int) -> None:
    """So it is for other stages, links and parts that are deferred."""
    plan = dense_plan(**keys | {"m": 60})
    run = simulate(plan, pricing_on(node, plan.mesh.size, devices_per_node=per_node))
    if run.paced is not None and run.paced.comes_back:
        assert_as_run(run)


def state_of(
    begins_s: tuple[list[float], list[float]], ends_s: tuple[list[float], list[float]], over_s: float = 0.0
) -> _State:
    """Return a state at second 3 of steps of 100 s; ``over_s``: when the first step is over."""
    begin, end = ((np.array(first_s), np.array(second_s)) for first_s, second_s in (begins_s, ends_s))
    return _State(np.zeros(0), np.zeros(0), 100.0, 3.0, begin, end, over_s)


NOT_YET = np.inf
FIRST_S = [0.0, 2.0, 5.0], [1.0, 4.0, 7.0]
"""An op that is over after three seconds, one that is at work, and one that is to come."""


@pytest.mark.parametrize(
    ("begins_s", "ends_s", "over_s", "is_same"),
    [
        ([0.0, 2.0, NOT_YET], [1.0, NOT_YET, NOT_YET], 0.0, True),
        ([0.0, 2.0, NOT_YET], [1.0, 4.0, NOT_YET], 0.0, True),
        ([0.0, 2.0, NOT_YET], [1.0, 4.1, NOT_YET], 0.0, False),
        ([0.0, 2.1, NOT_YET], [1.0, NOT_YET, NOT_YET], 0.0, False),
        ([0.0, NOT_YET, NOT_YET], [1.0, NOT_YET, NOT_YET], 0.0, False),
        ([0.0, 2.0, 2.5], [1.0, NOT_YET, NOT_YET], 0.0, False),
        ([0.0, 2.0, NOT_YET], [1.5, NOT_YET, NOT_YET], 0.0, True),
        ([0.5, 2.0, NOT_YET], [1.0, NOT_YET, NOT_YET], 0.0, True),
        ([0.0, 2.0, NOT_YET], [2.5, NOT_YET, NOT_YET], 0.0, False),
        ([0.0, 2.0, NOT_YET], [2.5, 4.0, NOT_YET], 0.0, True),
        ([0.0, 2.0, NOT_YET], [1.0, NOT_YET, NOT_YET], 2.5, False),
        ([0.0, 2.0, NOT_YET], [1.0, 4.0, NOT_YET], 2.5, True),
        ([0.0, 2.0, NOT_YET], [1.0, 4.0, NOT_YET], 3.5, False),
    ],
)
def test_a_state_is_that_of_the_first_step(
    begins_s: list[float], ends_s: list[float], over_s: float, *, is_same: bool
) -> None:
    """What is at work must have come as far, and must have begun since all was over that differs, or know its end."""
    assert state_of((FIRST_S[0], begins_s), (FIRST_S[1], ends_s), over_s).was_that_of_first == is_same


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> tuple[RestOfSteps, _State]:
    """Return what is left of the run of a plan at its first pause, and its state there."""
    found = list[tuple[RestOfSteps, _State]]()

    def is_known(rest: RestOfSteps) -> bool:
        found.append((rest, _State.of(rest.loop, rest.chains.graph, rest._steps)))
        return False

    monkeypatch.setattr(RestOfSteps, "is_known", is_known)
    run_with(tp=2)
    return found[0]


def test_only_the_second_step_may_have_begun(paused: tuple[RestOfSteps, _State]) -> None:
    """Nothing of the third has, nor of the second when the first was in the state."""
    rest, state = paused
    assert rest._is_alone(state)
    for node in (rest._steps.third[0], rest._steps.second[0]):
        changed = replace(state, starts_s=state.starts_s.copy())
        changed.starts_s[node] = 0.0
        assert not rest._is_alone(changed)


def test_ends_that_delays_count_from_are_those_of_the_first_step(paused: tuple[RestOfSteps, _State]) -> None:
    """So often is a pace passed through that half of what is rounding elsewhere is too much there."""
    rest, state = paused
    assert rest._remembers(state)
    steps, is_over = rest._steps, np.isfinite(state.ends_s[1])
    counted = np.isin(steps.second, rest.before) & is_over
    for place in (np.flatnonzero(counted)[0], np.flatnonzero(np.isin(steps.second, rest.earlier) & is_over)[0]):
        ends_s = state.ends_s[1].copy()
        ends_s[place] += 0.5 * state.slack_s
        assert not rest._remembers(replace(state, ends_s=(state.ends_s[0], ends_s)))


def test_what_the_first_step_puts_off_is_over(paused: tuple[RestOfSteps, _State]) -> None:
    """A delay of the first step that has no end yet is no state of a step before."""
    rest, state = paused
    delay = len(rest.chains.section) + int(np.flatnonzero(rest._steps.step[rest.before] == 0)[0])
    changed = replace(state, all_ends_s=state.all_ends_s.copy())
    changed.all_ends_s[delay] = -1.0
    assert not rest._remembers(changed)


def test_entries_of_a_block_that_waits_are_those_of_the_first_step(paused: tuple[RestOfSteps, _State]) -> None:
    """A block counts from when each of its entries let it go."""
    rest, state = paused
    place = int(np.flatnonzero(np.isfinite(state.ends_s[1]))[0])
    entry, block = rest._steps.second[[place, -1]].tolist()
    rest.chains.graph.entries[entry] = (block, 0)
    ends_s = state.ends_s[1].copy()
    ends_s[place] = state.ends_s[0][place] + 1e-8 * state.length_s
    for begin_s, remembers in ((0.0, True), (-1.0, False)):
        changed = replace(state, starts_s=state.starts_s.copy(), ends_s=(state.ends_s[0], ends_s))
        changed.starts_s[block] = begin_s
        assert rest._remembers(changed) == remembers


def test_a_begun_step_goes_on_at_the_pace_of_recurrences_that_were_left_out(paused: tuple[RestOfSteps, _State]) -> None:
    """Of more than were left out it is not known when they come, nor of those of a chain without a pace."""
    rest, _ = paused
    assert rest._steps.passes.max() > 1
    assert len(rest._steps.third)
    assert not len(replace(rest, times=1)._steps.third)
    rest.chains.earlier(rest.period)[rest._steps.before_third[rest._steps.passes > 0]] = NONE
    assert not len(replace(rest)._steps.third)


def test_nodes_of_other_kinds_are_not_the_same(paused: tuple[RestOfSteps, _State]) -> None:
    """A block that waits for the step before is not known in the first step; it must be over, and so must the first."""
    rest, _ = paused
    steps, graph = rest._steps, rest.chains.graph
    waits_more = {block for block, _ in graph.entries.values()}
    pairs = zip([*steps.first, *steps.before_third], [*steps.second, *steps.third], strict=True)
    assert all(graph.kinds[one] == graph.kinds[other] or waits_more.isdisjoint((one, other)) for one, other in pairs)
    of_second = steps.others[steps.step[steps.others] == 1].tolist()
    assert waits_more.intersection(of_second)
    assert np.isfinite(_State.of(rest.loop, graph, steps).over_s)
    rest.loop.ends_s[of_second[0]] = -1.0
    assert np.isinf(_State.of(rest.loop, graph, steps).over_s)


def test_ends_that_delays_count_from_are_known_in_the_first_step(paused: tuple[RestOfSteps, _State]) -> None:
    """Of a node that the first step has not, it is not known whether it goes on as before."""
    rest, _ = paused
    steps, graph = rest._steps, rest.chains.graph
    assert rest._remembers(_State.of(rest.loop, graph, steps))
    unlike = np.isin(steps.second, rest.before)
    fewer = replace(steps, first=steps.first[~unlike], second=steps.second[~unlike])
    rest.__dict__["_steps"] = fewer
    assert not rest._remembers(_State.of(rest.loop, graph, fewer))
