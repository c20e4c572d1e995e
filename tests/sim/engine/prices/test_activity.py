"""Demands on links as columns: what they say, and that a run is the same with them."""

import numpy as np
import pytest

from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices import pricing
from sim.engine.prices.activity import Activity, LinkDemands
from sim.engine.running.simulate import simulate
from tests.sim.jobs import LLAMA, dense_plan, op_times, pricing_on


def test_columns_of_demands_read_like_pairs() -> None:
    """In order, by place and in part; an activity lasts as long, uses links, and can have them listed."""
    columns, pairs = LinkDemands(np.array([3, 1]), np.array([0.5, 2.0])), ((("link", 3), 0.5), (("link", 1), 2.0))
    assert tuple(columns) == pairs
    assert (columns[1], columns[:1], len(columns)) == (pairs[1], pairs[:1], 2)
    as_columns, listed = (Activity(1.0, demands, single_s=1.5) for demands in (columns, pairs))
    assert as_columns.duration_s == listed.duration_s == 3.0
    assert as_columns.uses_links
    assert as_columns.listed == listed
    assert listed.listed is listed


@pytest.mark.parametrize("folds", [fold, no_fold], ids=["folded", "unfolded"])
def test_a_run_with_columns_is_the_run_with_pairs(folds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops begin and end at the same times, to the last bit."""
    plan, times = dense_plan(tp=4, pp=2, dp=4, m=2, model=LLAMA), []
    for most in (0, 10**9):
        monkeypatch.setattr(pricing, "_MANY_LINKS", most)
        prices = pricing_on("hgx-h100", plan.mesh.size)
        run = simulate(plan, prices, fold=folds)
        groups = [found for found in prices._collectives.values() if found.demands]
        assert any(isinstance(found.demands, LinkDemands) for found in groups) == (most == 0)
        times.append(op_times(run))
    assert times[0] == times[1]
