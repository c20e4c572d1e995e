"""Loads of many cases at once: sums over routes, and cases that several arrays have."""

import numpy as np
import pytest

from sim.cluster.link_use import LinkUse, hop_sums, link_use, route_sums, side_by_side
from sim.cluster.topology.links import num_hops
from sim.cluster.topology.topology import Routes


def test_routes_of_equal_latencies_take_equally_long_to_the_last_bit() -> None:
    """A thousand groups at equal distances are one batch; sums that depend on the routes before tell them apart."""
    latencies_s = np.array([1.3e-7, 2e-7, 1.1e-6])
    once = np.array([0, 1, 2, 1, 0], dtype=np.int32)
    routes = Routes(np.append(0, np.arange(0, 5001, 5)), np.tile(once, 1000))  # the first route has no link
    sums = route_sums(routes, latencies_s)
    assert sums[0] == 0.0
    assert len(set(sums[1:].tolist())) == 1
    assert sums[1] == pytest.approx(2 * 1.3e-7 + 2 * 2e-7 + 1.1e-6, rel=1e-14)


def test_sums_over_rows_of_hops_are_those_over_their_routes() -> None:
    """To the last bit, wherever a row has no link."""
    rng = np.random.default_rng(1)
    latencies_s, hops = rng.uniform(1e-7, 1e-5, 30), rng.integers(-1, 30, (200, 9)).astype(np.int32)
    present = hops >= 0
    routes = Routes(np.append(0, np.cumsum(present.sum(axis=1))), hops[present])
    assert num_hops(hops).tolist() == routes.num_hops.tolist()
    assert hop_sums(hops, latencies_s).tolist() == route_sums(routes, latencies_s).tolist()


def test_cases_of_several_uses_come_in_their_order() -> None:
    """Side by side, uses are what one use of all cases is."""
    rng = np.random.default_rng(0)
    rows, links = np.divmod(rng.permutation(200), 20)
    seconds = rng.uniform(0.5, 1.0, 200)
    whole = link_use(rows, links, seconds, 2 * seconds, 20)
    uses = [link_use(rows[of], links[of], seconds[of], 2 * seconds[of], 20) for of in (rows % 3 == i for i in range(3))]
    found = side_by_side(uses)
    for name in ("rows", "links", "seconds", "num_bytes"):
        assert getattr(found, name).tolist() == getattr(whole, name).tolist()


def test_links_of_no_seconds_are_left_out() -> None:
    """What takes no time on a link is no use of it."""
    use = LinkUse(np.array([0, 0, 1]), np.array([3, 4, 3]), np.array([0.0, 1.0, 2.0]), np.ones(3)).without_zeros()
    assert (use.rows.tolist(), use.links.tolist(), use.seconds.tolist()) == ([0, 1], [4, 3], [1.0, 2.0])
