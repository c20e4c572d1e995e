"""Where a rank's time goes: computing and waiting make up the step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.findings.breakdown import breakdowns, span_edges, without_touching
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.running.simulate import simulate
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Plan, Program
from tests.examples import examples
from tests.sim.jobs import LLAMA, dense_plan, pricing_on
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters


def assert_adds_up(plan: Plan, pricing: Pricing) -> None:
    """Assert that what each simulated rank computes and waits for is the step."""
    run = simulate(plan, pricing)
    for parts in breakdowns(run).values():
        assert parts.busy_s["compute"] + sum(parts.exposed_s.values()) == pytest.approx(run.iteration_time_s, rel=1e-9)


@dataclass(frozen=True)
class Whole:
    """Times that no rounding parts: a second per kernel that takes time under another pricing, none for all else."""

    pricing: Pricing

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return how long the op lasts."""
        lasts = isinstance(op, Compute) and self.pricing.price(plan, program, op, rank).duration_s > 0
        return Activity(1.0 if lasts else 0.0)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), keys=dense_keys(8))
def test_computing_and_waiting_make_up_the_step(data: Any, keys: dict[str, Any]) -> None:
    """On every simulated rank of random jobs, on clusters of every kind."""
    plan = dense_plan(**keys)
    assert_adds_up(plan, data.draw(clusters(plan.mesh.size)))


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "zb_h2"])
def test_an_op_that_takes_no_time_at_the_end_of_a_task_is_no_gap(schedule: str) -> None:
    """It ends when the next task's first op begins, and hides none of that."""
    model = LLAMA | {"num_layers": 2}
    plan = dense_plan(pp=2, m=4, schedule=schedule, gradient_placeholders=True, model=model)
    assert_adds_up(plan, Whole(pricing_on("dgx-a100-80g", 2)))


def test_computing_that_goes_on_is_one_span() -> None:
    """Ops that follow each other in all calls, by rounding or not, become one; a gap in one of the calls stays."""
    starts_s = np.array([[0.0, 0.1 + 0.2, 1.0, 3.0], [4.0, 4.3, 5.0, 6.0]])
    ends_s = np.array([[0.3, 1.0, 2.0, 4.0], [4.3, 5.0, 6.0, 7.0]])
    assert [places.tolist() for places in span_edges(starts_s, ends_s)] == [[0, 3], [2, 3]]
    alone = [without_touching(starts_s[call], ends_s[call]) for call in (0, 1)]
    assert [[times_s.tolist() for times_s in of_call] for of_call in alone] == [
        [[0.0, 3.0], [2.0, 4.0]],
        [[4.0], [7.0]],
    ]
