"""Folding on topologies of every kind: who is simulated, and that nobody notices."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.folding.folding import Folding, fold, no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_plan, op_times, pricing_on
from tests.sim.strategies import context_keys, dense_keys
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


@settings(
    max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), keys=dense_keys(24))
def test_folded_equals_unfolded_on_every_topology(data: Any, keys: dict[str, Any]) -> None:
    """Op by op, whatever joins the nodes, how full it is, who is slow, and however collectives are done.

    24 ranks are enough for every degree of every axis, beside any degree of another one.
    """
    plan = dense_plan(**keys)
    assert largest_gap(plan, data.draw(clusters(plan.mesh.size))) < 1e-9


@settings(
    max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), keys=context_keys(may_have_experts=True))
def test_folding_holds_where_ranks_share_sequences(data: Any, keys: dict[str, Any]) -> None:
    """Rings and gathers of keys and values among the ranks, and experts beside them, op by op."""
    plan = dense_plan(**keys)
    assert largest_gap(plan, data.draw(clusters(plan.mesh.size))) < 1e-9


# --- how many are simulated --------------------------------------------------------------------------------


def classes_of(description: object, num_nodes: int, tp: int, pp: int, dp: int) -> int:
    """Return how many ranks stand for all of a job on H100 nodes."""
    node = load_node("hgx-h100")
    cluster = Cluster(node, num_nodes, 8, parse_topology(description, num_nodes))
    model = GPT | {"num_layers": pp}
    plan = dense_plan(tp=tp, pp=pp, dp=dp, m=2, model=model)
    folding: Folding = fold(plan, ClusterPricing(cluster, load_profile(node.device.generation)))
    assert sum(folding.multiplicity.values()) == plan.mesh.size
    return len(folding.multiplicity)


RAILS = "superpod-h100"
OVERSUBSCRIBED = {
    "nodes": "hgx-h100",
    "fabric": {"kind": "leaf-spine", "leaf_ports": 256, "spines": 64, "oversubscription": 2},
}


@pytest.mark.parametrize("topology", [{"base": RAILS}, OVERSUBSCRIBED], ids=["rails", "oversubscribed"])
def test_one_slow_part_of_16384_ranks_costs_a_handful_of_classes(topology: dict[str, Any]) -> None:
    """A slow device, or a slow link, splits roles where it is felt, and no further: at most 128 classes."""
    sound = classes_of(topology, 2048, 8, 16, 128)
    assert sound <= 32
    for straggler in ({"device": 777}, {"link": "node 3 nic 0 out"}):
        slow = topology | {"stragglers": [straggler | {"slowdown": 1.3}]}
        assert sound < classes_of(slow, 2048, 8, 16, 128) <= 128


@pytest.mark.parametrize("method", ["p2p", "all_gather"])
def test_ranks_that_share_sequences_are_alike(method: str) -> None:
    """Whatever chunks of the sequence a rank has, one of each pipeline rank stands for all."""
    model = LLAMA | {"num_kv_heads": 8}
    plan = dense_plan(tp=8, pp=2, dp=4, m=2, model=model, context_degree=16, context_method=method)
    folding = fold(plan, pricing_on("hgx-h100", plan.mesh.size))
    assert list(folding.multiplicity.values()) == [512, 512]


def test_links_with_room_to_spare_tell_no_ranks_apart() -> None:
    """Where groups end in the middle of leaves, uplinks that can never be full split nothing; full ones do."""
    fabric = {"kind": "leaf-spine", "leaf_ports": 64, "spines": 16}
    few, many = (
        classes_of({"nodes": "hgx-h100", "fabric": fabric | {"uplink": {"bandwidth": rate}}}, 60, 8, 4, 15)
        for rate in ("800 GB/s", "200 GB/s")
    )
    assert few < many
