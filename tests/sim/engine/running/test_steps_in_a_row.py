"""Steps that run into each other: as few are simulated as show that the others are alike."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running import simulate as simulating
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.engine.running.steady import comes_back
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples
from tests.sim.jobs import as_array, dense_plan, op_times, pricing_on
from tests.sim.strategies import NODES, aiao_keys

LAW = settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))


def run_of(plan: Plan, node: str, per_node: int, *numbers: int) -> SimulatedRun:
    """Return the run of a plan in so many steps, the first number that is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulating, "NUMBERS_OF_STEPS", numbers)
        return simulate(plan, pricing_on(node, plan.mesh.size, devices_per_node=per_node))


@LAW
@given(keys=aiao_keys(), node=st.sampled_from(NODES), per_node=st.sampled_from([1, 2, 4, 8]))
def test_three_steps_are_enough_where_the_state_comes_back(keys: dict[str, Any], node: str, per_node: int) -> None:
    """Where three steps are taken to be enough, every op of the step is when it is between many more steps."""
    plan = dense_plan(**keys)
    few = run_of(plan, node, per_node, 3, 4, 8, 16)
    many = run_of(plan, node, per_node, 6)
    if few.num_steps > 3:
        return
    assert few.iteration_time_s == pytest.approx(many.iteration_time_s, rel=1e-9)
    found, expected = op_times(few), op_times(many)
    keys_of_ops = sorted(expected)
    assert sorted(found) == keys_of_ops
    difference = np.abs(as_array(found, keys_of_ops) - as_array(expected, keys_of_ops))
    assert difference.max() <= 1e-9 * few.iteration_time_s


@pytest.mark.parametrize(("sync_s", "num_steps"), [(0.5, 3), (1.0, 3), (2.0, 4)])
def test_a_stream_that_falls_behind_does_not_come_back(sync_s: float, num_steps: int) -> None:
    """A gradient that takes longer to send than the next one to compute waits longer in every step."""
    tasks = (
        Task("forward", Phase.FORWARD, (Compute("f", "delay", (), ("g",), {"duration_s": 1.0}),)),
        Task("sync", Phase.GRADIENT_SYNC, (Compute("s", "delay", ("g",), (), {"duration_s": sync_s}, "dp"),)),
    )
    buffers = {"g": Buffer("g", (1,), "float32", Kind.GRADIENT, Scope.MICROBATCH)}
    program = Program({}, buffers, {task.name: task for task in tasks}, (Call("forward", 0), Call("sync", 0)))
    run = simulate(Plan("two streams", Mesh((("pp", 1),)), (program,), barrier=False), TextbookPricing())
    assert run.num_steps == num_steps
    assert comes_back(run) == (num_steps == 3)
    assert run.iteration_time_s == pytest.approx(1.0)
