"""Folding on topologies of every kind: who is simulated, and that nobody notices."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.folding import no_fold
from sim.engine.pricing import ClusterPricing
from sim.engine.simulate import simulate
from sim.plan.program import Plan
from tests.sim.jobs import dense_plan, op_times
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters


def largest_gap(plan: Plan, pricing: ClusterPricing) -> float:
    """Return the largest difference of any op's start or end, folded against unfolded, relative to the makespan."""
    folded, every = simulate(plan, pricing), simulate(plan, pricing, fold=no_fold)
    stands_for, times = folded.folding.stands_for, op_times(folded)
    gap_s = max(
        abs(value - mine)
        for (rank, *rest), found in op_times(every).items()
        for value, mine in zip(found, times[stands_for[rank], rest[0], rest[1]], strict=True)
    )
    return gap_s / every.makespan_s


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), keys=dense_keys(36))
def test_folded_equals_unfolded_on_every_topology(data: Any, keys: dict[str, Any]) -> None:
    """Op by op, whatever joins the nodes, however full it is, and whichever devices and links are slow."""
    plan = dense_plan(**keys)
    assert largest_gap(plan, data.draw(clusters(plan.mesh.size))) < 1e-9
