"""The critical path: it lasts as long as the run, and says by how much the run changes with its ops."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.activity import Activity, Pricing
from sim.engine.critical_path import critical_path
from sim.engine.simulate import simulate
from sim.plan.op import Collective, Compute, Op
from sim.plan.program import Plan, Program
from tests.sim.jobs import dense_plan
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Slower:
    """Another pricing's times with nothing shared, and ops of one kernel or kind of collective longer."""

    pricing: Pricing
    what: str
    factor: float

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return how long the op lasts, longer where it is meant."""
        alone_s = self.pricing.price(plan, program, op, rank).duration_s
        return Activity(alone_s * (self.factor if named(op) == self.what else 1.0))

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def named(op: Op | None) -> str:
    """Return the kernel or the kind of collective; empty for anything else."""
    if isinstance(op, Compute):
        return op.kernel
    return str(op.kind) if isinstance(op, Collective) else ""


@SETTINGS
@given(data=st.data(), keys=dense_keys(16), coalesce=st.booleans())
def test_the_path_leads_from_the_beginning_to_the_end(data: Any, keys: dict[str, Any], coalesce: bool) -> None:
    """Every step begins where the one before ended, the first at 0, and the last ends with the run."""
    plan = dense_plan(**keys)
    run = simulate(plan, data.draw(clusters(plan.mesh.size)), coalesce=coalesce)
    steps = critical_path(run).steps
    assert steps[0].start_s == pytest.approx(0.0, abs=1e-9 * run.makespan_s)
    assert steps[-1].end_s == pytest.approx(run.makespan_s, rel=1e-12)
    for before, after in pairwise(steps):
        assert after.start_s == pytest.approx(before.end_s, abs=2e-9 * run.makespan_s)


@SETTINGS
@given(data=st.data(), keys=dense_keys(8))
def test_the_run_is_longer_by_at_least_what_the_path_is(data: Any, keys: dict[str, Any]) -> None:
    """Longest paths are convex in the ops' times: ops longer by a part of themselves add that part of it or more."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    run = simulate(plan, Slower(pricing, "", 1.0))
    path = critical_path(run)
    what = data.draw(st.sampled_from(sorted({named(step.op) for step in path.steps} - {""})))
    on_path_s = sum(step.duration_s for step in path.steps if named(step.op) == what)
    longer_s = simulate(plan, Slower(pricing, what, 1.0 + 1e-3)).makespan_s - run.makespan_s
    assert longer_s >= 1e-3 * on_path_s * (1 - 1e-6)
    assert simulate(plan, Slower(pricing, what, 1.0 - 1e-7)).makespan_s <= run.makespan_s
