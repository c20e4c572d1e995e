"""Networks against published closed forms, and bisection bandwidth against networkx's maximum flow."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.topology.facts import bisection_bytes_per_s, describe, export_bytes_per_s, max_hops
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from tests.examples import examples
from tests.sim.cluster.topology_graphs import (
    NIC,
    PCIE,
    SINGLE,
    SWITCHED,
    TREE,
    all_routes,
    cluster,
    device_half,
    dragonfly,
    fabrics,
    fat_tree,
    max_flow_between,
    torus,
)

NIC_BYTES_PER_S = 10e9


def count(topology: Topology, kind: LinkKind) -> int:
    """Return the number of directed links of a kind."""
    return int((topology.kind == kind).sum())


@pytest.mark.parametrize("radix", [2, 4, 6, 8])
def test_fat_tree_has_its_published_size(radix: int) -> None:
    """k ports: k^3/4 hosts, 5k^2/4 switches, k^3/4 cables per level (Al-Fares et al. 2008); half the hosts cross."""
    topology = fat_tree(radix)
    hosts = radix**3 // 4
    assert topology.fabric is not None
    assert topology.fabric.num_switches == 5 * radix**2 // 4
    assert count(topology, LinkKind.NIC) == count(topology, LinkKind.LEAF_SPINE) == 2 * hosts
    assert count(topology, LinkKind.SPINE_CORE) == 2 * hosts
    assert bisection_bytes_per_s(topology) == hosts / 2 * NIC_BYTES_PER_S
    degree = np.bincount(topology.source, minlength=topology.num_vertices)
    assert set(degree[-topology.fabric.num_switches :].tolist()) == {radix}


@pytest.mark.parametrize("shape", [(3,), (8,), (4, 3), (4, 4), (5, 3, 4), (4, 4, 4), (3, 3, 3, 3)])
def test_torus_has_its_published_size(shape: tuple[int, ...]) -> None:
    """2d directed links leave every router of a d-dimensional torus; 2 k^(d-1) cables cross its even middle."""
    topology = torus(*shape)
    nodes, dimensions = int(np.prod(shape)), len(shape)
    assert topology.num_links == 2 * dimensions * nodes
    if len(set(shape)) == 1 and shape[0] % 2 == 0:
        assert bisection_bytes_per_s(topology) == 2 * shape[0] ** (dimensions - 1) * 50e9
    assert max_hops(topology) == sum(size // 2 for size in shape)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_torus_of_two_along_each_dimension_is_a_hypercube(dimensions: int) -> None:
    """Both links of a dimension of 2 lead to one neighbour, as one of twice the bandwidth: 2 k^(d-1) still holds."""
    topology = torus(*[2] * dimensions)
    assert topology.num_links == dimensions * 2**dimensions
    assert set(topology.bandwidth_bytes_per_s.tolist()) == {100e9}
    assert bisection_bytes_per_s(topology) == 2 * 2 ** (dimensions - 1) * 50e9
    assert max_hops(topology) == dimensions


@pytest.mark.parametrize(("a", "p", "h"), [(2, 1, 1), (4, 2, 2), (6, 3, 3), (3, 1, 2)])
def test_dragonfly_has_its_published_size(a: int, p: int, h: int) -> None:
    """g = a h + 1 groups, N = a p g terminals, one cable per two groups, h at every router (Kim et al. 2008)."""
    topology = dragonfly(a, p, h)
    groups = a * h + 1
    assert topology.fabric is not None
    assert topology.num_devices == a * p * groups
    assert topology.fabric.num_switches == a * groups
    assert count(topology, LinkKind.GLOBAL) == groups * (groups - 1)
    assert count(topology, LinkKind.LOCAL) == groups * a * (a - 1)
    over = topology.kind == LinkKind.GLOBAL
    assert set(np.bincount(topology.source[over])[-a * groups :].tolist()) == {h}
    assert max_hops(topology) == 2 + 4 + 3


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 20))
@settings(max_examples=examples(24), deadline=None)
def test_dragonfly_of_any_size_joins_every_two_groups_once(a: int, h: int, groups: int) -> None:
    """Fewer groups than a h + 1 are still all joined, no router has more than h cables to other groups, both ways."""
    groups = min(groups, a * h + 1)
    topology = dragonfly(a, 1, h, groups)
    over = topology.kind == LinkKind.GLOBAL
    first = topology.num_vertices - a * groups
    ends = np.stack([topology.source[over], topology.target[over]]) - first
    pairs = {tuple(pair) for pair in (ends // a).T.tolist()}
    assert pairs == {(i, j) for i in range(groups) for j in range(groups) if i != j}
    assert {tuple(pair) for pair in ends.T.tolist()} == {tuple(pair) for pair in ends[::-1].T.tolist()}
    cables = np.bincount(ends[0], topology.bandwidth_bytes_per_s[over] / 10e9)
    assert cables.max() <= h + 1e-9


@pytest.mark.parametrize(("nodes", "leaves", "spines", "cables"), [(64, 16, 8, 512), (128, 32, 16, 1024)])
def test_superpod_has_its_published_size(nodes: int, leaves: int, spines: int, cables: int) -> None:
    """Leaves, spines and cables of two and four scalable units (NVIDIA DGX SuperPOD reference architecture, B200)."""
    fabric: dict[str, Any] = {"kind": "rail-optimised", "nodes_per_leaf": 32, "spines": spines}
    topology = parse_topology({"nodes": "dgx-b200", "fabric": fabric}, nodes)
    assert topology.fabric is not None
    assert topology.fabric.num_switches == leaves + spines
    up = topology.kind == LinkKind.LEAF_SPINE
    assert count(topology, LinkKind.NIC) == 2 * cables
    assert topology.bandwidth_bytes_per_s[up].sum() / 50e9 == 2 * cables


@pytest.mark.parametrize("over", [1, 2, 3.5])
def test_oversubscription_divides_the_bisection(over: float) -> None:
    """A leaf-spine of 4 leaves with 6 ports each: half of the ports cross, divided by the oversubscription."""
    topology = cluster(SINGLE, 24, kind="leaf-spine", leaf_ports=6, spines=3, oversubscription=over)
    assert bisection_bytes_per_s(topology) == pytest.approx(12 * NIC_BYTES_PER_S / over)
    up = topology.kind == LinkKind.LEAF_SPINE
    assert topology.bandwidth_bytes_per_s[up] == pytest.approx(6 * NIC_BYTES_PER_S / over / 3)


def test_llama3_pods_cross_at_one_seventh() -> None:
    """24,576 GPUs in 8 pods, 7 : 1 between pods (arXiv 2407.21783, 3.3.1): 12,288 x 50 GB/s / 7."""
    topology = parse_topology("llama3-roce-24k", 3072)
    assert topology.num_devices == 24576
    assert bisection_bytes_per_s(topology) == pytest.approx(12288 * 50e9 / 7)


BISECTED = {
    "one switch": lambda: cluster(SINGLE, 8, kind="switch"),
    "adapters faster than PCIe": lambda: cluster(SINGLE | {"nic": {"bandwidth": "99 GB/s"}}, 6, kind="switch"),
    "leaf-spine": lambda: cluster(SINGLE, 8, kind="leaf-spine", leaf_ports=2, spines=2, oversubscription=2),
    "leaf-spine, leaf in both halves": lambda: cluster(
        SINGLE, 9, kind="leaf-spine", leaf_ports=3, spines=2, oversubscription=3
    ),
    "fat tree": lambda: fat_tree(4, oversubscription=2),
    "thin cores": lambda: fat_tree(4, core_oversubscription=4),
    "uneven fat tree": lambda: cluster(
        SINGLE, 11, kind="fat-tree", leaf_ports=2, leaves_per_pod=2, spines_per_pod=2, cores_per_spine=1,
        oversubscription=2, core_oversubscription=2,
    ),
    "rails": lambda: cluster(SWITCHED, 4, kind="rail-optimised", nodes_per_leaf=2, spines=2, oversubscription=4),
    "one adapter for 8 devices": lambda: cluster(TREE | {"nics": 1}, 4, kind="switch"),
    "adapters at sockets behind two switches": lambda: cluster(
        TREE | {"pcie_switches": 2, "nics": 8, "nics_at": "socket"}, 2, kind="switch"
    ),
    "ring": lambda: torus(8),
    "ring, odd": lambda: torus(7),
    "torus": lambda: torus(4, 3),
    "torus, 2 along one dimension": lambda: torus(5, 2),
    "torus behind adapters": lambda: cluster(SINGLE, 8, kind="torus", shape=[4, 2], link=PCIE),
    "dragonfly": lambda: dragonfly(2, 1, 1, 3),
    "dragonfly, full": lambda: dragonfly(4, 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BISECTED)
def test_bisection_is_the_maximum_flow(name: str) -> None:
    """What a network claims to carry from one half to the other is the maximum flow between them, by networkx."""
    topology = BISECTED[name]()
    claimed = bisection_bytes_per_s(topology)
    assert claimed == pytest.approx(max_flow_between(topology, device_half(topology)), rel=1e-9)


@pytest.mark.parametrize(
    "name",
    ["one switch", "leaf-spine", "leaf-spine, leaf in both halves", "ring", "ring, odd", "torus, 2 along one dimension",
     "dragonfly"],
)  # fmt: skip
def test_no_other_halves_have_less_between_them(name: str) -> None:
    """Of all ways to halve the devices of a small cluster, the claimed one is the narrowest."""
    topology = BISECTED[name]()
    claimed = bisection_bytes_per_s(topology)
    devices = topology.num_devices
    others = combinations(range(devices), devices // 2)
    for chosen in list(others)[: 1 + 200 if devices > 9 else None]:
        half = np.isin(np.arange(devices), chosen)
        assert max_flow_between(topology, half) >= claimed * (1 - 1e-9)


@given(st.data())
@settings(max_examples=examples(20), deadline=None)
def test_bisection_of_any_levels_is_the_maximum_flow(data) -> None:
    """Leaf-spines, fat trees and rails of any size and oversubscription, full or not."""
    num_nodes = data.draw(st.integers(2, 9))
    levels = fabrics(num_nodes).filter(lambda fabric: fabric["kind"] not in {"torus", "dragonfly"})
    topology = cluster(data.draw(st.sampled_from([SINGLE, SWITCHED])), num_nodes, **data.draw(levels))
    claimed = bisection_bytes_per_s(topology)
    assert claimed == pytest.approx(max_flow_between(topology, device_half(topology)), rel=1e-9)


def test_bisection_inside_a_node() -> None:
    """A DGX-1 has 6 NVLinks of 25 GB/s between its two quads; half of 8 devices cross an NVSwitch."""
    assert bisection_bytes_per_s(parse_topology({"nodes": "dgx-1-v100"}, 1)) == pytest.approx(150e9)
    assert bisection_bytes_per_s(parse_topology({"nodes": "hgx-h100"}, 1)) == pytest.approx(4 * 450e9)
    assert bisection_bytes_per_s(cluster(TREE | {"socket_link": NIC}, 1)) == pytest.approx(NIC_BYTES_PER_S)


PUBLISHED: list[tuple[str, object, int, float]] = [
    ("DGX-2: NVIDIA NVSwitch technical overview (2018)", {"nodes": "dgx-2"}, 1, 2.4e12),
    ("DGX A100: NVIDIA, third-generation NVSwitch (2022), table 2", {"nodes": "dgx-a100"}, 1, 2.4e12),
    ("DGX H100: the same", {"nodes": "hgx-h100"}, 1, 3.6e12),
    ("32 DGX A100 on HDR: the same", "superpod-a100", 32, 6.4e12),
    ("4,096 TPU v4: 16 x 16 wrapped rows cut twice, 50 GB/s a link and direction (arXiv 2304.01433)",
     {"base": "tpu-v4-slice", "fabric": {"shape": [16, 16, 16]}}, 4096, 2 * 2 * 16 * 16 * 50e9),
    ("SuperPOD H100: 1,024 adapters of 50 GB/s without oversubscription (RA-11333-001)", "superpod-h100", 128, 51.2e12),
]  # fmt: skip


@pytest.mark.parametrize(("source", "description", "nodes", "both_ways"), PUBLISHED)
def test_bisection_is_what_data_sheets_say(source: str, description: object, nodes: int, both_ways: float) -> None:
    """Data sheets add both directions up; ``simulate show`` says one."""
    assert bisection_bytes_per_s(parse_topology(description, nodes)) == pytest.approx(both_ways / 2), source


def test_packaged_clusters_have_their_published_parts() -> None:
    """SuperPOD H100: 32 leaves, 16 spines, 1,024 cables; NVL72: 130 TB/s in a rack; DGX-1: 6 NVLinks a device."""
    pod = parse_topology("superpod-h100", 128)
    assert pod.fabric is not None
    assert pod.fabric.num_switches == 32 + 16
    assert pod.bandwidth_bytes_per_s[pod.kind == LinkKind.LEAF_SPINE].sum() / 50e9 == 2 * 1024
    rack = parse_topology("gb200-nvl72-pods", 18)
    assert rack.bandwidth_bytes_per_s[rack.kind == LinkKind.NVSWITCH].sum() == pytest.approx(130e12, rel=0.005)
    mesh = parse_topology({"nodes": "dgx-1-v100"}, 1)
    leaving = (mesh.kind == LinkKind.NVLINK) & (mesh.source == 0)
    assert mesh.bandwidth_bytes_per_s[leaving].sum() == 6 * 25e9


def test_an_island_sends_no_more_than_its_narrowest_part() -> None:
    """8 adapters of 10 GB/s behind two PCIe switches of 30 GB/s send 60 GB/s; beside their devices, all 80."""
    behind = TREE | {"pcie_switches": 2, "nics": 8, "nics_at": "socket"}
    assert export_bytes_per_s(cluster(behind, 1).islands[0]) == pytest.approx(60e9)
    assert export_bytes_per_s(cluster(TREE | {"nics": 8}, 1).islands[0]) == pytest.approx(80e9)


@given(st.data())
@settings(max_examples=examples(12), deadline=None)
def test_longest_route_is_the_longest_of_all(data) -> None:
    """The longest route that is stated is the longest of all pairs."""
    num_nodes = data.draw(st.integers(1, 6))
    topology = cluster(SWITCHED, num_nodes, **data.draw(fabrics(num_nodes)))
    assert max_hops(topology) == all_routes(topology)[2].num_hops.max()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torus(7, 6, 7),
        lambda: fat_tree(12),
        lambda: cluster(SWITCHED, 100, kind="rail-optimised", nodes_per_leaf=8, spines=3, cross_rail="spine"),
        lambda: dragonfly(6, 3, 3),
        lambda: cluster(TREE, 40, kind="leaf-spine", leaf_ports=5, spines=2),
    ],
)
def test_longest_route_is_found_from_some_devices(make) -> None:
    """On clusters too large for all pairs, the longest route from a few devices is that of all pairs."""
    topology = make()
    assert topology.num_devices > 256
    assert max_hops(topology) == all_routes(topology)[2].num_hops.max()


def test_a_device_alone_has_no_links() -> None:
    """One node of one chip without a network is a cluster whose facts list no link."""
    facts = describe(cluster("torus-chip", 1))
    assert facts.links == ()
    assert (facts.num_devices, facts.max_hops) == (1, 0)


def test_facts_count_links_by_kind_and_speed() -> None:
    """Equal links are one row; a straggler among them has its own; all rows together are all links."""
    whole = cluster(SINGLE, 4, kind="leaf-spine", leaf_ports=2, spines=1, uplink={"bandwidth": "5 GB/s"})
    facts = describe(whole.slowed({1: 3.0}, {"leaf 0 to spine 0": 2.0}))
    rows = [(row.kind, row.count, row.bandwidth_bytes_per_s) for row in facts.links]
    assert rows == [
        (LinkKind.PCIE, 16, 30e9), (LinkKind.NIC, 8, 10e9), (LinkKind.LEAF_SPINE, 3, 5e9),
        (LinkKind.LEAF_SPINE, 1, 2.5e9),
    ]  # fmt: skip
    assert facts.slowed_devices == (1,)
    assert (facts.num_devices, facts.num_nodes, facts.num_ports, facts.num_switches) == (4, 4, 4, 3)
    assert facts.max_hops == 2 + 1 + 2 + 1 + 2
