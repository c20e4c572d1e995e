"""Routes: they lead there, are as short as they should be, always the same, and take the links they should."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from sim.cluster.cluster import below_one_switch
from sim.cluster.topology.catalogue import list_topologies
from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.links import Cable, LinkKind, LinkTable, joined, one_way
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from tests.examples import examples
from tests.sim.cluster.topology_graphs import (
    CHIP,
    FAST,
    NIC,
    PCIE,
    SINGLE,
    SWITCHED,
    TREE,
    all_routes,
    assert_connected,
    cluster,
    dragonfly,
    fabrics,
    fat_tree,
    graph,
    node_layouts,
    torus,
)

MINIMAL = {
    "one switch": lambda: cluster(SINGLE, 9, kind="switch"),
    "leaf-spine": lambda: cluster(SINGLE, 11, kind="leaf-spine", leaf_ports=3, spines=2),
    "fat tree": lambda: fat_tree(4),
    "uneven fat tree": lambda: cluster(
        SINGLE, 23, kind="fat-tree", leaf_ports=3, leaves_per_pod=2, spines_per_pod=3, cores_per_spine=2
    ),
    "ring": lambda: torus(7),
    "torus": lambda: torus(5, 4),
    "3d torus": lambda: torus(4, 3, 2),
    "torus behind adapters": lambda: cluster(SINGLE, 12, kind="torus", shape=[3, 4], link=PCIE),
    "PCIe nodes, one adapter": lambda: cluster(TREE | {"nics": 1}, 5, kind="leaf-spine", leaf_ports=2, spines=2),
    "PCIe node": lambda: cluster(TREE, 1),
    "hybrid cube mesh": lambda: parse_topology({"nodes": "dgx-1-v100"}, 1),
    "rails": lambda: cluster(SWITCHED | {"pcie_switches": 4}, 6, kind="rail-optimised"),
}


def names_on(topology: Topology, source: int, target: int) -> list[str]:
    """Return the names of the links of one route."""
    return [topology.name_of(link) for link in topology.routes(np.array([source]), np.array([target]))[0].tolist()]


@pytest.mark.parametrize("name", MINIMAL)
def test_routes_are_shortest(name: str) -> None:
    """Where routing is minimal, a route crosses as many links as networkx's shortest path between the devices."""
    topology = MINIMAL[name]()
    sources, targets, routes = all_routes(topology)
    assert_connected(topology, sources, targets, routes)
    shortest = dict(nx.all_pairs_shortest_path_length(graph(topology)))
    assert routes.num_hops.tolist() == [shortest[s][t] for s, t in zip(sources.tolist(), targets.tolist(), strict=True)]


def test_dragonfly_routes_are_shortest_over_one_global_link() -> None:
    """No path with at most one link between groups is shorter; a path over a third group may be."""
    topology = dragonfly(4, 2, 2)
    sources, targets, routes = all_routes(topology)
    assert_connected(topology, sources, targets, routes)
    layers = nx.DiGraph()
    for source, target, kind in zip(
        *(c.tolist() for c in (topology.source, topology.target, topology.kind)), strict=True
    ):
        crosses = kind == LinkKind.GLOBAL
        for before in range(2 - crosses):
            layers.add_edge((source, before), (target, before + crosses))
    for source in range(3):
        found = nx.single_source_shortest_path_length(layers, (source, 0))
        for target in range(topology.num_devices):
            hops = routes.num_hops[source * topology.num_devices + target]
            assert hops == min(found.get((target, crossed), 99) for crossed in (0, 1))
    crossings = np.add.reduceat(np.append(topology.kind[routes.links] == LinkKind.GLOBAL, 0), routes.indptr[:-1])
    assert crossings[routes.num_hops > 0].max() == 1


@given(st.data())
@settings(max_examples=examples(24), deadline=None)
def test_every_route_leads_there(data) -> None:
    """For any nodes and any network, each route is a chain of links from source to target without repetition."""
    layout = data.draw(node_layouts())
    num_nodes = data.draw(st.integers(1, 4)) * layout["nodes_per_domain"]
    topology = cluster(layout, num_nodes, **data.draw(fabrics(num_nodes)))
    sources, targets, routes = all_routes(topology)
    assert_connected(topology, sources, targets, routes)
    assert ((routes.num_hops == 0) == (sources == targets)).all()


@given(st.data())
@settings(max_examples=examples(8), deadline=None)
def test_a_route_does_not_depend_on_the_others_asked_for(data) -> None:
    """The route of a pair alone is its route among many, in any order."""
    topology = cluster(SWITCHED, 6, **data.draw(fabrics(6)))
    sources, targets, routes = all_routes(topology)
    order = np.array(data.draw(st.permutations(range(len(sources)))))[:40]
    again = topology.routes(sources[order], targets[order])
    for place, index in enumerate(order.tolist()):
        alone = topology.routes(sources[[index]], targets[[index]])
        assert routes[index].tolist() == again[place].tolist() == alone.links.tolist()


@pytest.mark.parametrize("name", list_topologies())
def test_catalogue_topologies_route(name: str) -> None:
    """Every topology of the catalogue routes between devices near and far."""
    topology = parse_topology(name, 512 if name.startswith("tpu") else 72)
    sources = np.arange(0, topology.num_devices, 7)
    for shift in (1, 9, topology.num_devices // 2):
        targets = (sources + shift) % topology.num_devices
        assert_connected(topology, sources, targets, topology.routes(sources, targets))


def test_hybrid_cube_mesh_has_six_nvlinks_at_every_device() -> None:
    """Six links of 25 GB/s end at each V100 of a DGX-1; pairs share one or two; routes between neighbours use them."""
    topology = parse_topology({"nodes": "dgx-1-v100"}, 1)
    nvlink = topology.kind == LinkKind.NVLINK
    assert np.bincount(topology.source[nvlink], topology.bandwidth_bytes_per_s[nvlink]).tolist() == [150e9] * 8
    assert sorted(set(topology.bandwidth_bytes_per_s[nvlink].tolist())) == [25e9, 50e9]
    assert nvlink.sum() == 32
    assert names_on(topology, 0, 3) == ["node 0 gpu 0 to gpu 3"]


def test_hybrid_cube_mesh_is_the_published_one() -> None:
    """The rows that NVIDIA/nccl issue 671 shows: GPU 0 has 1, 1, 2, 2 links to 1, 2, 3, 4; GPU 1 has 1, 2, 1, 2."""
    topology = parse_topology({"nodes": "dgx-1-v100"}, 1)
    links = graph(topology)
    shared = [
        [round(links[a][b]["capacity"] / 25e9) if links.has_edge(a, b) else 0 for b in range(8)] for a in range(8)
    ]
    assert shared[0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert shared[1] == [1, 0, 2, 1, 0, 2, 0, 0]
    assert shared == [list(column) for column in zip(*shared, strict=True)]


def test_pairs_without_nvlink_go_over_a_neighbour_or_the_host() -> None:
    """GPUs 0 and 5 go over a GPU that both reach, with the wider link last; with relay: host over PCIe and sockets."""
    over_neighbour = parse_topology({"nodes": "dgx-1-v100"}, 1)
    assert names_on(over_neighbour, 0, 5) == ["node 0 gpu 0 to gpu 1", "node 0 gpu 1 to gpu 5"]
    assert names_on(over_neighbour, 5, 0) == ["node 0 gpu 5 to gpu 4", "node 0 gpu 4 to gpu 0"]
    over_host = parse_topology({"nodes": {"base": "dgx-1-v100", "relay": "host"}}, 1)
    kinds = [LinkKind(k) for k in over_host.kind[over_host.routes(np.array([0]), np.array([5]))[0]].tolist()]
    assert kinds == [LinkKind.PCIE] * 2 + [LinkKind.SOCKET] + [LinkKind.PCIE] * 2


def test_nvlink_pairs_cross_the_sockets() -> None:
    """On an AC922, GPUs of one socket have their bond; GPUs of two sockets go over both hosts and the X-Bus."""
    topology = parse_topology({"nodes": "longhorn"}, 1)
    assert names_on(topology, 0, 1) == ["node 0 gpu 0 to gpu 1"]
    route = topology.routes(np.array([1]), np.array([2]))[0]
    assert topology.bandwidth_bytes_per_s[route].tolist() == [75e9, 32e9, 75e9]


def test_devices_use_their_nearest_adapter() -> None:
    """With 2 adapters for 8 devices, devices 0 to 3 leave by adapter 0, the others by adapter 1; and enter alike."""
    topology = cluster(TREE, 2, kind="switch")
    out = [next(n for n in names_on(topology, d, 8 + d) if n.endswith(" out")) for d in range(8)]
    into = [next(n for n in names_on(topology, 8 + d, d) if n.endswith(" in")) for d in range(8)]
    assert out == ["node 0 nic 0 out"] * 4 + ["node 0 nic 1 out"] * 4
    assert into == ["node 0 nic 0 in"] * 4 + ["node 0 nic 1 in"] * 4


def test_same_rail_crosses_one_switch() -> None:
    """Devices of one rail and one group of nodes meet at one leaf switch, without NVLink or spine."""
    topology = cluster(SWITCHED, 8, kind="rail-optimised", nodes_per_leaf=4, spines=2)
    assert names_on(topology, 2, 4 + 2) == [
        "node 0 gpu 2 to socket 0", "node 0 socket 0 to nic 2", "node 0 nic 2 out",
        "node 1 nic 2 in", "node 1 nic 2 to socket 0", "node 1 socket 0 to gpu 2",
    ]  # fmt: skip


def test_other_rail_goes_over_nvlink_or_spine() -> None:
    """From rail 0 to rail 2: NVSwitch to GPU 2, then its rail; or, where asked for, rail 0 and a spine."""
    over_nvlink = cluster(SWITCHED, 8, kind="rail-optimised", nodes_per_leaf=4, spines=2)
    assert names_on(over_nvlink, 0, 4 + 2)[:5] == [
        "node 0 gpu 0 to nvswitch", "node 0 nvswitch to gpu 2", "node 0 gpu 2 to socket 0",
        "node 0 socket 0 to nic 2", "node 0 nic 2 out",
    ]  # fmt: skip
    over_spine = cluster(SWITCHED, 8, kind="rail-optimised", nodes_per_leaf=4, spines=2, cross_rail="spine")
    names = names_on(over_spine, 0, 4 + 2)
    assert names[2] == "node 0 nic 0 out"
    assert names[3:5] == ["leaf 0 to spine 1", "spine 1 to leaf 2"]


def test_domain_joins_devices_of_several_nodes() -> None:
    """In an NVL72 any two of the 72 GPUs are two NVSwitch links apart; the next rack is reached over the network."""
    topology = parse_topology("gb200-nvl72-pods", 36)
    assert topology.num_devices == 144
    assert topology.node_of(np.array([0, 4, 71, 72])).tolist() == [0, 1, 17, 18]
    assert names_on(topology, 0, 71) == ["node 0 gpu 0 to domain 0 nvswitch", "domain 0 nvswitch to node 17 gpu 3"]
    assert "node 0 nic 0 out" in names_on(topology, 0, 72)


@pytest.mark.parametrize("shift", range(1, 16))
def test_shifts_meet_no_other_route_in_a_full_fat_tree(shift: int) -> None:
    """With the spine chosen by target, every shift permutation puts at most one route on each link (Zahavi 2012)."""
    topology = fat_tree(4)
    sources = np.arange(16)
    routes = topology.routes(sources, (sources + shift) % 16)
    assert np.bincount(routes.links).max() == 1


def test_rail_shifts_spread_over_all_spines() -> None:
    """From one group of nodes to the next, the routes of a rail share its leaf's uplinks evenly."""
    topology = cluster(SWITCHED, 8, kind="rail-optimised", nodes_per_leaf=4, spines=4)
    sources = np.arange(16)
    routes = topology.routes(sources, sources + 16)
    assert np.bincount(routes.links).max() == 1


def test_torus_goes_one_dimension_after_the_other_the_shorter_way_round() -> None:
    """From (0, 0) to (4, 1) of 5 x 4: one step back along the first dimension, then one forward along the second."""
    assert names_on(torus(5, 4), 0, 4 * 4 + 1) == ["node 0 gpu 0 to node 16 gpu 0", "node 16 gpu 0 to node 17 gpu 0"]


def test_torus_shares_ties_between_both_ways_round() -> None:
    """Where everyone sends half way round, the links forward and backward carry the same."""
    topology = torus(8)
    sources = np.arange(8)
    loads = np.bincount(topology.routes(sources, (sources + 4) % 8).links, minlength=16)
    assert loads[:8].sum() == loads[8:].sum() == 16


def test_nodes_of_several_types_live_in_one_cluster() -> None:
    """A group of PCIe nodes beside a group of NVSwitch nodes: numbering, inside and between."""
    nodes = [{"count": 2, "type": TREE}, {"count": 3, "type": SWITCHED}, {"count": 1, "type": SINGLE}]
    topology = parse_topology({"nodes": nodes, "fabric": {"kind": "leaf-spine", "leaf_ports": 4, "spines": 2}}, 6)
    assert topology.num_devices == 2 * 8 + 3 * 4 + 1
    assert topology.node_of(np.array([0, 15, 16, 27, 28])).tolist() == [0, 1, 2, 4, 5]
    sources, targets, routes = all_routes(topology)
    assert_connected(topology, sources, targets, routes)
    assert names_on(topology, 16, 17) == ["node 2 gpu 0 to nvswitch", "node 2 nvswitch to gpu 1"]


def test_every_link_has_its_own_name() -> None:
    """No two links share a name, and each is found again by it."""
    for topology in (
        cluster(SWITCHED, 4, kind="rail-optimised", nodes_per_leaf=2, spines=2),
        fat_tree(4),
        torus(3, 2),
        dragonfly(2, 1, 1),
        parse_topology("gb200-nvl72-pods", 36),
    ):
        names = [topology.name_of(link) for link in range(topology.num_links)]
        assert len(set(names)) == len(names)
        for link in range(0, topology.num_links, 1 + topology.num_links // 9):
            assert topology.link_named(names[link]) == link
        assert topology.vertex_names() == [topology.vertex_name(v) for v in range(topology.num_vertices)]


def test_stragglers_slow_what_they_name() -> None:
    """A slow link has less bandwidth and more of both times; a slow device its factor; nothing else changes."""
    whole = cluster(SINGLE, 4, kind="switch")
    slowed = whole.slowed({2: 1.5}, {"node 3 nic 0 out": 2.0})
    link = slowed.link_named("node 3 nic 0 out")
    assert slowed.bandwidth_bytes_per_s[link] == whole.bandwidth_bytes_per_s[link] / 2
    assert slowed.latency_s[link] == 2 * whole.latency_s[link]
    assert slowed.message_s[link] == 2 * whole.message_s[link] > 0
    assert np.flatnonzero(slowed.bandwidth_bytes_per_s != whole.bandwidth_bytes_per_s).tolist() == [link]
    assert slowed.device_slowdown.tolist() == [1.0, 1.0, 1.5, 1.0]
    assert whole.device_slowdown.tolist() == [1.0] * 4


def test_devices_that_are_not_there_are_refused() -> None:
    """Routing from or to a device outside the cluster, or lists of unequal length, says so."""
    topology = torus(4)
    with pytest.raises(TopologyError, match="there is no device 4; devices are 0 to 3"):
        topology.routes(np.array([0]), np.array([4]))
    with pytest.raises(TopologyError, match="two lists of equal length"):
        topology.routes(np.array([0, 1]), np.array([2]))


def test_no_routes_are_no_error() -> None:
    """An empty question gets an empty answer."""
    routes = cluster(SWITCHED, 2, kind="switch").routes(np.zeros(0, int), np.zeros(0, int))
    assert len(routes) == len(routes.links) == 0


def test_one_device_alone_needs_no_links() -> None:
    """A single chip is a cluster, with nothing to route."""
    topology = cluster(CHIP, 1)
    assert (topology.num_devices, topology.num_links) == (1, 0)
    assert topology.routes(np.array([0]), np.array([0])).num_hops.tolist() == [0]


def test_nvlinks_may_be_listed() -> None:
    """A mesh of one's own: links of a pair add up to one of the sum of their bandwidths."""
    mesh = {"devices": 3, "inside": "nvlink-mesh", "nvlink": FAST, "nvlinks": [[0, 1, 1], [1, 2, 2], [1, 0, 1]]}
    topology = cluster(mesh | {"pcie": PCIE, "nics": 3, "nic": NIC}, 1)
    assert topology.bandwidth_bytes_per_s[topology.kind == LinkKind.NVLINK].tolist() == [600e9] * 4
    assert names_on(topology, 0, 2) == ["node 0 gpu 0 to gpu 1", "node 0 gpu 1 to gpu 2"]


@pytest.mark.parametrize("name", ["rails", "torus", "hybrid cube mesh", "torus behind adapters"])
def test_memory_and_drives_change_no_other_link(name: str) -> None:
    """Each node has one link to its memory and one to its drives; routes, names and numbers of other links stay."""
    plain = MINIMAL[name]()
    topology = plain.with_host_links(LinkKind.MEMORY, Cable(bandwidth_bytes_per_s=9.0))
    topology = topology.with_host_links(LinkKind.DRIVES, Cable(bandwidth_bytes_per_s=7.0))
    devices = np.arange(plain.num_devices)
    assert [topology.name_of(link) for link in range(plain.num_links)] == [
        plain.name_of(link) for link in range(plain.num_links)
    ]
    ends = np.zeros_like(devices), devices
    assert topology.routes(*ends).links.tolist() == plain.routes(*ends).links.tolist()
    for kind, words, rate in ((LinkKind.MEMORY, "memory", 9.0), (LinkKind.DRIVES, "drives", 7.0)):
        links = topology.host_link(kind, devices)
        names = [topology.name_of(link) for link in links.tolist()]
        assert names == [f"node {n} {words} to host" for n in plain.node_of(devices)]
        assert topology.bandwidth_bytes_per_s[links].tolist() == [rate] * len(devices)
        assert [topology.link_named(name) for name in names] == links.tolist()


def test_hosts_links_are_the_same_from_the_start_and_added_later() -> None:
    """Nodes below one switch that are built with links of their hosts are those that get them afterwards."""
    hosts = {LinkKind.MEMORY: Cable(bandwidth_bytes_per_s=9.0), LinkKind.DRIVES: Cable(bandwidth_bytes_per_s=7.0)}
    built = below_one_switch(load_node("hgx-h100"), 3, hosts=hosts)
    later = below_one_switch(load_node("hgx-h100"), 3)
    for kind, cable in hosts.items():
        later = later.with_host_links(kind, cable)
    assert (built.host_links, built.num_vertices) == (later.host_links, later.num_vertices)
    for name in LinkTable.__struct_fields__:
        assert getattr(built.links, name).tolist() == getattr(later.links, name).tolist()
        assert getattr(built.links, name).dtype == getattr(later.links, name).dtype


def test_joined_tables_keep_their_rates() -> None:
    """Rates of links that follow others whose bandwidth is a whole number keep their fractions."""
    whole = one_way(np.array([0]), np.array([1]), LinkKind.NIC, Cable(bandwidth_bytes_per_s=1))
    rest = one_way(np.array([1]), np.array([2]), LinkKind.NIC, Cable(bandwidth_bytes_per_s=2.5, latency_s=0.5))
    table = joined([whole, rest.moved(np.array([3, 4]), np.array([5, 6]))])
    assert table.bandwidth_bytes_per_s.tolist() == [1.0, 2.5, 2.5]
    assert (table.source.tolist(), table.target.tolist()) == ([0, 3, 4], [1, 5, 6])
