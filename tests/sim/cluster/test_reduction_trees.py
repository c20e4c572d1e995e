"""CollNet on topologies: trees of switches, what each of their links carries, and what that saves."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.collectives.network import COLLNET
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.link_use import LinkCost
from sim.cluster.network import Network
from sim.cluster.nominal import Library
from sim.cluster.reduction_tree import reduction_trees
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.parse import parse_topology
from sim.engine.prices.pricing import ClusterPricing
from tests.examples import examples
from tests.sim.cluster.stepwise_cases import PARAMETERS
from tests.sim.cluster.topology_graphs import SINGLE, SWITCHED

GIB = 2**30
FORMS = [("all_reduce", "collnet_direct"), ("all_reduce", "collnet_chain")]
FORMS += [("all_gather", "collnet_direct"), ("reduce_scatter", "collnet_direct")]
LEAVES = {"kind": "leaf-spine", "leaf_ports": 8, "spines": 2}
FABRICS: dict[str, dict[str, Any]] = {
    "switch": {"kind": "switch"},
    "leaf-spine": LEAVES,
    "fat-tree": {
        **{"kind": "fat-tree", "leaf_ports": 8, "leaves_per_pod": 2, "spines_per_pod": 2, "cores_per_spine": 2},
        "core_oversubscription": 2,
    },
    "rail-optimised": {"kind": "rail-optimised", "nodes_per_leaf": 2, "spines": 2},
}


def network(fabric: dict[str, Any], node: str = "hgx-h100", num_nodes: int = 8, *, reduces: bool = True) -> Network:
    """Return nodes of a type on a network whose switches reduce, or not."""
    topology = parse_topology({"nodes": node, "fabric": fabric | {"in_network_reduction": reduces}}, num_nodes)
    spec = load_node(node)
    return ClusterPricing(Cluster(spec, num_nodes, 8, topology), load_profile(spec.device.generation)).network


def seconds(cost: LinkCost) -> float:
    """Return how long a cost lasts alone."""
    return cost.latency_s + max(seconds for _, seconds in cost.links)


@pytest.mark.parametrize(("kind", "algorithm"), FORMS)
@pytest.mark.parametrize("per_node", [1, 4, 8])
def test_below_one_switch_it_lasts_its_closed_form(kind: str, algorithm: str, per_node: int) -> None:
    """Alone on its links, latency and the busier of ports and adapters are the closed form's."""
    net = network({"kind": "switch"})
    group = [8 * node + local for node in range(8) for local in range(per_node)]
    nodes = (per_node,) * 8
    [parameters] = [library.parameters for library in net.libraries]
    expected = collective_cost(kind, GIB, nodes, parameters, algorithm)
    cost = net.collective(kind, GIB, group, algorithm)
    bandwidth_s = exclusive_seconds(expected, nodes, parameters) - expected.latency_s
    assert seconds(cost) - cost.latency_s == pytest.approx(bandwidth_s, rel=1e-9)


@pytest.mark.parametrize("name", FABRICS)
def test_every_adapter_sends_once_and_receives_once(name: str) -> None:
    """Each of a group's adapters carries n/8 out and n/8 in, whatever the network beyond (Graham et al. 2016)."""
    net = network(FABRICS[name])
    for algorithm in sorted(COLLNET):
        used = dict(net.collective("all_reduce", GIB, range(64), algorithm).links)
        nics = np.flatnonzero(net.topology.kind == LinkKind.NIC).tolist()
        rate = 50e9 * load_profile("h100").network.inter_fraction
        assert [used.get(link, 0.0) for link in nics] == pytest.approx([GIB / 8 / rate] * 128)


def test_a_leaf_sends_one_sum_up_however_many_are_below() -> None:
    """Closed form: eight adapters send n/8 each of one part; their leaf adds them up and sends each part up once."""
    fabric = {"kind": "leaf-spine", "leaf_ports": 32, "spines": 4}
    net = network(fabric)
    up = np.flatnonzero(net.topology.kind == LinkKind.LEAF_SPINE)
    used = dict(net.collective("all_reduce", GIB, range(64), "collnet_direct").links)
    rate = 1 / net.seconds_per_byte
    carried = sum(used.get(link, 0.0) * rate[link] for link in up.tolist())
    assert carried == pytest.approx(2 * 2 * GIB)  # two leaves, up and down, the vector once
    everyone = dict(net.collective("all_reduce", GIB, range(64), "ring").links)
    in_ring = sum(everyone.get(link, 0.0) * rate[link] for link in up.tolist())
    assert in_ring == pytest.approx(2 * 2 * 2 * 63 / 64 * GIB)  # both boundaries between leaves, twice the vector


def test_what_a_link_carries_is_what_is_below_it() -> None:
    """A gather carries up what lies below a link, and down what does not; a scatter the reverse, for each part."""
    topology = parse_topology({"nodes": SINGLE, "fabric": LEAVES | {"in_network_reduction": True}}, 16)
    devices = np.arange(16)[None, :]
    found = {}
    for kind in ("all_gather", "reduce_scatter"):
        rows, links, parts = reduction_trees(topology, kind, devices, (1,) * 16)
        assert set(rows.tolist()) == {0}
        found[kind] = dict(zip(map(topology.name_of, links.tolist()), parts.tolist(), strict=True))
    gather, scatter = found["all_gather"], found["reduce_scatter"]
    assert gather["node 3 nic 0 out"] == pytest.approx(1 / 16)
    assert gather["node 3 nic 0 in"] == pytest.approx(15 / 16)
    assert gather["leaf 1 to spine 0"] == pytest.approx(8 / 16) == gather["spine 0 to leaf 1"]
    assert scatter["node 3 nic 0 out"] == pytest.approx(15 / 16)
    assert scatter["node 3 nic 0 in"] == pytest.approx(1 / 16)


@settings(max_examples=examples(16), deadline=None)
@given(data=st.data(), fabric=st.sampled_from(sorted(FABRICS)), per_node=st.integers(1, 4))
def test_trees_are_trees(data: st.DataObject, fabric: str, per_node: int) -> None:
    """Up each vertex but the root has one way on, all members reach the root, and each cable is used both ways once."""
    nodes = data.draw(st.lists(st.integers(0, 8), min_size=2, max_size=9, unique=True))
    topology = parse_topology({"nodes": SWITCHED, "fabric": FABRICS[fabric] | {"in_network_reduction": True}}, 9)
    devices = np.array([[4 * node + local for node in sorted(nodes) for local in range(per_node)]])
    for column in range(per_node):
        alone = devices[:, column::per_node]
        _, links, parts = reduction_trees(topology, "all_reduce", alone, (1,) * len(nodes))
        assert parts.tolist() == [1.0] * len(links)
        assert len(set(links.tolist())) == len(links)
        up, down = np.split(links, 2)
        assert topology.source[up].tolist() == topology.target[down].tolist()
        assert topology.target[up].tolist() == topology.source[down].tolist()
        onward = dict(zip(topology.source[up].tolist(), topology.target[up].tolist(), strict=True))
        assert len(onward) == len(up)
        root = int(alone[0, 0])
        for member in alone[0].tolist():
            path = [member]
            while path[-1] != root:
                path.append(onward[path[-1]])
                assert len(path) <= len(up) + 1


def test_oversubscribed_trees_gain_more_than_one_switch() -> None:
    """Where leaves are oversubscribed four times, reductions in the leaves save what a ring of nodes would cross."""
    free = network({"kind": "switch"}, "dgx-a100-80g")
    tight = network({**LEAVES, "spines": 8, "oversubscription": 8}, "dgx-a100-80g")
    ring, direct = (
        [seconds(net.collective("all_reduce", GIB, range(64), name)) for net in (free, tight)]
        for name in ("ring", "collnet_direct")
    )
    assert ring[1] / direct[1] > ring[0] / direct[0] > 1


def test_published_bandwidth_of_streaming_aggregation() -> None:
    """About 95 % of the network's bandwidth for large vectors on HDR (Graham et al. 2020, abstract)."""
    topology = parse_topology({"nodes": "dgx-a100", "fabric": {"kind": "switch", "in_network_reduction": True}}, 32)
    spec = load_node("dgx-a100-80g")
    net = ClusterPricing(Cluster(spec, 32, 1, topology), load_profile("a100")).network
    cost = net.collective("all_reduce", GIB, range(32))
    assert GIB / seconds(cost) / 25e9 == pytest.approx(0.95, abs=0.02)
    assert cost == net.collective("all_reduce", GIB, range(32), "collnet_chain")


@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_nothing_changes_where_switches_do_not_reduce(fabric: str) -> None:
    """Without the key, ``auto`` prices what it priced; with it, a collective never takes longer."""
    with_key, without = (network(FABRICS[fabric], reduces=reduces) for reduces in (True, False))
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        for num_bytes in (2**10, 2**20, GIB):
            plain = without.collective(kind, num_bytes, range(64))
            assert not without.parameters.in_network_reduction
            assert seconds(with_key.collective(kind, num_bytes, range(64))) <= seconds(plain) * (1 + 1e-9)


def test_many_groups_cost_what_each_costs() -> None:
    """Priced together, groups put on links what they do one by one."""
    topology = parse_topology(
        {"nodes": SWITCHED, "fabric": FABRICS["rail-optimised"] | {"in_network_reduction": True}}, 8
    )
    net = Network(topology, np.arange(32), (Library(replace(PARAMETERS, in_network_reduction=True)),))
    groups = np.arange(32).reshape(2, 4, 4).transpose(0, 2, 1).reshape(-1, 4)
    for kind, algorithm in FORMS:
        use = net.collectives(kind, GIB, groups, algorithm)
        for row, group in enumerate(groups.tolist()):
            links, took = use.of_row(row)
            alone = net.collective(kind, GIB, group, algorithm)
            assert dict(zip(links.tolist(), took.tolist(), strict=True)) == pytest.approx(dict(alone.links))
