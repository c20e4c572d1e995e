"""Of steps in a row only the first runs to its end, where the second comes to a state of the first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.running.loop import EventLoop
from sim.engine.running.period import Times
from sim.engine.running.rest_of_steps import RestOfSteps, _State
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from tests.examples import examples
from tests.sim.engine.running.test_begun import PLAN, PRICING
from tests.sim.jobs import dense_plan, pricing_on
from tests.sim.strategies import NODES, aiao_keys

LAW = settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))


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


def test_the_rest_of_steps_is_as_it_runs() -> None:
    """Nodes, blocks and speeds on links are those of a run of all events, two fifths of which are spared."""
    run = simulate(PLAN, PRICING)
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
