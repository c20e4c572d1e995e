"""Stages with paces of their own that share links."""

from typing import Any

import pytest

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from tests.sim.cluster.topology_graphs import FAST, PCIE
from tests.sim.engine.running.test_repeated import assert_same_findings
from tests.sim.jobs import LLAMA, dense_plan


@pytest.mark.parametrize(("schedule", "num_layers"), [("gpipe", 4), ("breadth_first", 8)])
def test_stages_of_unlike_pace_may_meet_on_a_link_that_is_not_full(schedule: str, num_layers: int) -> None:
    """How full a link is counts what a transfer meets in each pass of a period: stages meet at other moments in it."""
    keys: dict[str, Any] = {"pp": 4, "tp": 4, "m": 64, "schedule": schedule, "virtual_stages": num_layers // 4}
    plan = dense_plan(**keys, model=LLAMA | {"num_layers": num_layers}, axis_order=("dp", "tp", "pp", "cp"))
    nodes = {"devices": 4, "inside": "nvswitch", "nvlink": FAST, "pcie": PCIE, "nics": 4, "nodes_per_domain": 2}
    nodes |= {"nic": {"bandwidth": "10 GB/s", "latency": "1 us"}}
    topology = parse_topology({"nodes": nodes, "fabric": {"kind": "leaf-spine", "leaf_ports": 2, "spines": 1}}, 8)
    pricing = ClusterPricing(Cluster(load_node("hgx-h100"), 8, 2, topology), load_profile("h100"))
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert_same_findings(run, whole, pricing)
