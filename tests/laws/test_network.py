"""Laws of a collective alone on a network: every algorithm, clusters of every kind, groups that lie anyhow."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.collectives.cost import why_not
from costmodels.collectives.flows import collective_flows
from costmodels.collectives.network import COLLNET
from costmodels.collectives.traffic import TRAFFIC
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.link_use import LinkCost
from sim.cluster.network import Network
from sim.cluster.rings import nvlink_rings
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from sim.engine.prices.pricing import ClusterPricing
from tests.examples import examples
from tests.laws.anomalies import ANOMALIES
from tests.sim.cluster.topology_graphs import SINGLE, SWITCHED, TREE, cluster, dragonfly, fat_tree, graph, torus

REDUCES = {"in_network_reduction": True}
LEAVES = {"kind": "leaf-spine", "leaf_ports": 4, "spines": 2, "oversubscription": 2}
CLUSTERS: dict[str, Callable[[], Topology]] = {
    "one switch": lambda: cluster(SINGLE, 9, kind="switch", **REDUCES),
    "switched nodes": lambda: cluster(SWITCHED, 4, kind="switch", **REDUCES),
    "oversubscribed leaves": lambda: cluster(SINGLE, 12, **LEAVES, **REDUCES),
    "fat tree": lambda: fat_tree(4, **REDUCES),
    "rails": lambda: cluster(SWITCHED | {"pcie_switches": 4}, 4, kind="rail-optimised", **REDUCES),
    "domains": lambda: cluster(SWITCHED | {"nodes_per_domain": 2}, 4, kind="switch"),
    "torus": lambda: torus(4, 3),
    "dragonfly": lambda: dragonfly(2, 2, 1),
    "hybrid cube mesh": lambda: parse_topology({"nodes": "dgx-1-v100"}, 1),
    "PCIe nodes": lambda: cluster(TREE, 2, kind="switch"),
    "NVLink pairs": lambda: parse_topology({"nodes": "longhorn", "fabric": {"kind": "switch"}}, 3),
    "H100": lambda: parse_topology({"nodes": "hgx-h100", "fabric": {"kind": "switch"} | REDUCES}, 2),
}
FORMS = [(kind, name) for kind, names in TRAFFIC.items() for name in names if kind != "barrier"]
PROFILES = ("h100", "a100", "cpu")
GIB = 2**30
SIZES = tuple(2**power for power in (3, 10, 15, 22, 29))
"""Payloads in bytes."""


@dataclass(frozen=True)
class Case:
    """One collective of some devices of a cluster, under a profile."""

    cluster: str
    profile: str
    group: tuple[int, ...]
    kind: str
    algorithm: str
    num_bytes: int

    @property
    def network(self) -> Network:
        """Return the links as ranks see them."""
        return network(self.cluster, self.profile)


@cache
def network(name: str, profile: str) -> Network:
    """Return the network of a cluster, built once."""
    topology, node = CLUSTERS[name](), load_node("hgx-h100")
    per_node = topology.num_devices // topology.num_nodes
    return ClusterPricing(Cluster(node, topology.num_nodes, per_node, topology), load_profile(profile)).network


@st.composite
def cases(draw: Any) -> Case:
    """Draw a collective that can be done: any algorithm, any members, from a few bytes to a gibibyte."""
    name, profile = draw(st.sampled_from(sorted(CLUSTERS))), draw(st.sampled_from(PROFILES))
    net = network(name, profile)
    members = st.lists(st.sampled_from(range(net.topology.num_devices)), min_size=2, max_size=12, unique=True)
    per_node = net.topology.num_devices // net.topology.num_islands
    aligned = st.integers(1, per_node).map(
        lambda count: [i * per_node + j for i in range(net.topology.num_islands) for j in range(count)]
    )
    group = draw(members | aligned)
    assume(len(group) > 1)
    kind, algorithm = draw(st.sampled_from(FORMS))
    assume(not why_not(kind, algorithm, net.ranks_per_node(group), net.parameters))
    size = draw(st.sampled_from([1000, 2**16, 2**20 + 4, 2**26, GIB]))
    return Case(name, profile, tuple(group), kind, algorithm, size)


def seconds(cost: LinkCost) -> float:
    """Return how long a cost lasts alone."""
    return cost.latency_s + max((taken for _, taken in cost.links), default=0.0)


def lasts(case: Case, net: Network | None = None, num_bytes: int | None = None) -> float:
    """Return how long a case lasts, on another network or of another size if given."""
    return seconds((net or case.network).collective(case.kind, num_bytes or case.num_bytes, case.group, case.algorithm))


def rewired(net: Network, *, bandwidth: float = 1.0, latency: float = 1.0) -> Network:
    """Return the network with all links so many times as fast, and as late."""

    def table(links: Any) -> Any:
        return replace(
            links,
            bandwidth_bytes_per_s=links.bandwidth_bytes_per_s * bandwidth,
            latency_s=links.latency_s * latency,
            message_s=links.message_s,
        )

    topology = replace(net.topology, links=table(net.topology.links))
    libraries = tuple(
        replace(
            library,
            parameters=replace(
                library.parameters,
                intra_bandwidth_bytes_per_s=library.parameters.intra_bandwidth_bytes_per_s * bandwidth,
                inter_bandwidth_bytes_per_s=library.parameters.inter_bandwidth_bytes_per_s * bandwidth,
                intra_latency_s=library.parameters.intra_latency_s * latency,
                inter_latency_s=library.parameters.inter_latency_s * latency,
            ),
        )
        for library in net.libraries
    )
    islands = tuple(replace(island, links=table(island.links)) for island in topology.islands)
    return Network(replace(topology, islands=islands), net.devices, libraries)


def with_one_protocol(net: Network) -> Network:
    """Return the network with libraries that use, at every size, only what they use for the largest payloads."""
    one = tuple(
        replace(p, limit_bytes=inf, inter_least_bytes=0.0) for p in net.parameters.protocols if p.limit_bytes == inf
    )
    libraries = tuple(replace(lib, parameters=replace(lib.parameters, protocols=one)) for lib in net.libraries)
    return replace(net, libraries=libraries)


def by_one_protocol(case: Case) -> float:
    """Return by what part a case may last longer for less time of its bytes, by one protocol."""
    return ANOMALIES["messages of an all_to_all"].bound if case.kind == "all_to_all" else 1e-9


@settings(max_examples=examples(40), deadline=None)
@given(case=cases(), factor=st.floats(1.001, 20))
@example(case=Case("hybrid cube mesh", "a100", tuple(range(8)), "all_to_all", "bruck", 2**20 + 4), factor=1.1)
@example(case=Case("rails", "h100", (0, 1, 2, 8, 3, 5), "all_to_all", "direct", 1000), factor=20)
def test_faster_links_are_never_slower(case: Case, factor: float) -> None:
    """All links with more bandwidth, or with less latency, make no collective last longer by any one protocol.

    Where the library chooses among protocols, it may choose badly, within a bound that is named among the anomalies.
    """
    slack = ANOMALIES["a protocol chosen by the rates of links"].bound
    for net, most in ((with_one_protocol(case.network), by_one_protocol(case)), (case.network, slack)):
        sound = lasts(case, net)
        assert lasts(case, rewired(net, bandwidth=factor)) <= sound * (1 + most)
        assert lasts(case, rewired(net, latency=1 / factor)) <= sound * (1 + most)


@settings(max_examples=examples(40), deadline=None)
@given(case=cases(), data=st.data(), slowdown=st.floats(1.5, 20))
def test_one_slow_link_never_helps(case: Case, data: st.DataObject, slowdown: float) -> None:
    """A straggler among the links, whichever, makes no collective faster; one that carries nothing changes nothing."""
    net = case.network
    cost = net.collective(case.kind, case.num_bytes, case.group, case.algorithm)
    link = data.draw(st.integers(0, net.topology.num_links - 1))
    slow = replace(net, topology=net.topology.slowed(links={net.topology.name_of(link): slowdown}))
    with_straggler = slow.collective(case.kind, case.num_bytes, case.group, case.algorithm)
    assert seconds(with_straggler) >= seconds(cost) * (1 - 1e-9)
    if link not in dict(cost.links) and case.algorithm not in COLLNET:
        assert max(s for _, s in with_straggler.links) == pytest.approx(max(s for _, s in cost.links))


@settings(max_examples=examples(40), deadline=None)
@given(case=cases(), share=st.floats(0.01, 1))
def test_fewer_bytes_are_never_slower_by_one_protocol(case: Case, share: float) -> None:
    """With one protocol for all sizes, a smaller payload makes no collective last longer."""
    net = with_one_protocol(case.network)
    fewer = max(1, int(case.num_bytes * share))
    assert lasts(case, net, fewer) <= lasts(case, net) * (1 + by_one_protocol(case))


@settings(max_examples=examples(40), deadline=None)
@given(case=cases())
@example(case=Case("hybrid cube mesh", "h100", (0, 1, 2), "all_reduce", "ring", 1000))
def test_links_carry_what_routes_say(case: Case) -> None:
    """Flows added up pair by pair along their routes are the bytes of every link; what enters a switch leaves it."""
    assume(case.algorithm not in {*COLLNET, "tree"})
    net = case.network
    use = net.collectives(case.kind, case.num_bytes, np.array([case.group]), case.algorithm)
    nodes = net.ranks_per_node(case.group)
    devices = sorted(case.group, key=lambda rank: (int(net.topology.device_island[rank]), case.group.index(rank)))
    rings = nvlink_rings(net.topology.islands[0], devices)[0] if len(nodes) == 1 else ()
    flows = collective_flows(case.kind, case.algorithm, nodes, rings)
    carried: dict[int, float] = defaultdict(float)
    leaves, enters = np.zeros(net.topology.num_vertices), np.zeros(net.topology.num_vertices)
    for source, target, part in zip(flows.sources.tolist(), flows.targets.tolist(), flows.parts.tolist(), strict=True):
        first, last = devices[source], devices[target]
        leaves[first] += part * case.num_bytes
        enters[last] += part * case.num_bytes
        for link in net.topology.routes(np.array([first]), np.array([last]))[0].tolist():
            carried[link] += part * case.num_bytes
    found = dict(zip(use.links.tolist(), use.num_bytes.tolist(), strict=True))
    assert found == pytest.approx({link: size for link, size in carried.items() if size > 0})
    net_out = np.zeros(net.topology.num_vertices)
    for link, size in found.items():
        net_out[net.topology.source[link]] += size
        net_out[net.topology.target[link]] -= size
    assert net_out == pytest.approx(leaves - enters, abs=1e-3)


def entering(kind: str, inside: int, ranks: int, num_bytes: int, *, has_root: bool) -> float:
    """Return the bytes that must enter a part of a group's members, however a collective is done."""
    share = inside / ranks
    return {
        "all_reduce": num_bytes,
        "all_gather": (1 - share) * num_bytes,
        "reduce_scatter": share * num_bytes,
        "all_to_all": inside * (1 - share) * num_bytes,
        "broadcast": 0.0 if has_root else num_bytes,
        "reduce": num_bytes if has_root else 0.0,
    }[kind]


@settings(max_examples=examples(40), deadline=None)
@given(case=cases(), data=st.data())
def test_nothing_beats_the_smallest_cut(case: Case, data: st.DataObject) -> None:
    """Bytes that must enter a part of the members, over the most that links let in (networkx's maximum flow)."""
    net, ranks = case.network, len(case.group)
    inside = data.draw(st.sets(st.sampled_from(case.group), min_size=1, max_size=ranks - 1))
    links = graph(net.topology)
    for member in case.group:
        links.add_edge(*((member, "into") if member in inside else ("from", member)), capacity=inf)
    most = nx.maximum_flow_value(links, "from", "into")
    needed = entering(case.kind, len(inside), ranks, case.num_bytes, has_root=case.group[0] in inside)
    assert lasts(case) >= needed / most * (1 - 1e-9)


NODES = (
    "dgx-1-v100-16g", "longhorn", "aws-p3-16xlarge", "dgx-2", "cloud-a100-100g", "dgx-a100-80g", "hgx-h100", "hgx-h200",
    "dgx-b200",
)  # fmt: skip


@pytest.mark.parametrize("wired", [False, True], ids=["one switch", "layout"])
@pytest.mark.parametrize("name", NODES)
def test_a_group_inside_a_node_is_never_slower_than_across_nodes(name: str, *, wired: bool) -> None:
    """Whatever it does, and however many of its members each of the other nodes has.

    But for small all_reduces of V100, whose tree is a chain inside a node.
    """
    node, anomaly = load_node(name), ANOMALIES["a chain inside a node"]
    per_node, has_chains = node.devices_per_node, node.device.generation == "v100"
    topology = parse_topology({"nodes": name, "fabric": {"kind": "switch"}}, 8) if wired else None
    net = ClusterPricing(Cluster(node, 8, per_node, topology), load_profile(node.device.profile)).network
    for kind, size in product(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"), SIZES):
        bound = anomaly.bound if has_chains and kind == "all_reduce" and size <= SIZES[2] else 1e-9
        for ranks in (count for count in (2, 4, 8, 16) if count <= per_node):
            inside = seconds(net.collective(kind, size, range(ranks)))
            for share in {max(ranks // 8, 1), ranks // 2}:
                group = [node * per_node + i for node in range(ranks // share) for i in range(share)]
                across = seconds(net.collective(kind, size, group))
                assert inside <= across * (1 + bound), (kind, size, ranks, share)
