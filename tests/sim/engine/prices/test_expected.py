"""Prices of ranks that were expected: found together, and equal to those found one by one."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.cluster.network import Network
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.jobs import dense_plan, pricing_on
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters


def prices(plan: Plan, pricing: ClusterPricing, ranks: list[int]) -> list[Activity]:
    """Return the activities of all ops of some ranks."""
    return [
        pricing.price(plan, plan.program_of(rank), op, rank)
        for rank in ranks
        for task in plan.program_of(rank).tasks.values()
        for op in task.ops
    ]


@settings(
    max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), keys=dense_keys(16))
def test_expected_ranks_cost_what_they_cost_unexpected(data: Any, keys: dict[str, Any]) -> None:
    """To the last bit, on clusters of every kind, whichever ranks are expected."""
    plan = dense_plan(**keys)
    one_by_one = data.draw(clusters(plan.mesh.size))
    ranks = sorted(data.draw(st.sets(st.integers(0, plan.mesh.size - 1), min_size=1)))
    together = one_by_one.under(one_by_one.software)
    together.expect(plan, ranks)
    assert prices(plan, together, ranks) == prices(plan, one_by_one, ranks)


def test_expected_ranks_ask_the_network_once_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once some ranks are expected, pricing their ops asks the network for nothing more."""
    plan, pricing = dense_plan(tp=2, pp=2, dp=4, m=2), pricing_on("hgx-h100", 16)
    pricing.expect(plan, range(plan.mesh.size))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked again")

    monkeypatch.setattr(Network, "collectives", refuse)
    monkeypatch.setattr(Network, "messages", refuse)
    assert any(activity.uses_links for activity in prices(plan, pricing, list(range(plan.mesh.size))))
