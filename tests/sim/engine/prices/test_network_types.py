"""Islands of several nodes, and clusters of several types of nodes: what a library takes their links for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.reading.clusters.machine import ClusterSpec
from sim.cluster.cluster import Cluster
from sim.cluster.link_use import LinkCost
from sim.cluster.network import Network
from sim.cluster.nominal import inside_bytes_per_s
from sim.cluster.rings import nvlink_rings
from sim.cluster.topology.parse import parse_topology
from sim.engine.prices.pricing import ClusterPricing

GIB = 2**30
SWITCH = {"kind": "switch"}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def network(*types: tuple[str, int], fabric: dict[str, Any] = SWITCH) -> Network:
    """Return the links of nodes of some types, so many of each, each with the profile of its devices."""
    description = {"nodes": [{"count": count, "type": name} for name, count in types], "fabric": fabric}
    topology = parse_topology(description, sum(count for _, count in types))
    devices = tuple((load_node(name).device, count) for name, count in types)
    cluster = Cluster(load_node(types[0][0]), topology.num_nodes, 8, topology, devices)
    profiles = {device.generation: load_profile(device.generation) for device, _ in devices}
    return ClusterPricing(cluster, next(iter(profiles.values())), profiles).network


def seconds(cost: LinkCost) -> float:
    """Return how long a cost lasts alone."""
    return cost.latency_s + max(seconds for _, seconds in cost.links)


# --- domains of several nodes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def racks() -> Network:
    """Return two racks of 72 devices."""
    topology = parse_topology("gb200-nvl72-pods", 36)
    return ClusterPricing(Cluster(load_node("dgx-b200"), 36, 4, topology), load_profile("b200")).network


def test_a_rack_is_one_island_and_two_are_two(racks: Network) -> None:
    """Groups are cut where NVSwitch domains end, not where nodes do, whoever is the root and however ranks lie."""
    assert racks.ranks_per_node(range(72)) == (72,)
    assert racks.ranks_per_node(range(4, 20)) == (16,)
    assert racks.ranks_per_node(range(144)) == (72, 72)
    assert racks.ranks_per_node(range(70, 76)) == (2, 4)
    assert racks.ranks_per_node(range(0, 144, 8)) == (9, 9)
    assert racks.parameters.nics_per_node == 72


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [range(8), range(72), range(144), range(60, 84)])
def test_racks_cost_the_closed_form_of_their_islands(racks: Network, kind: str, group: range) -> None:
    """A collective lasts as its closed form says of islands of 72: NVLink inside, 72 adapters between."""
    per_island = racks.ranks_per_node(group)
    route_s = racks.topology.latency_s[racks.topology.routes(np.array([0]), np.array([1]))[0]].sum()
    far = racks.topology.routes(np.array([71]), np.array([72]))[0]
    parameters = replace(racks.parameters, intra_latency_s=route_s, inter_latency_s=racks.topology.latency_s[far].sum())
    expected = collective_cost(kind, GIB, per_island, parameters)
    cost = racks.collective(kind, GIB, group)
    assert seconds(cost) >= exclusive_seconds(expected, per_island, parameters) * (1 - 1e-9)
    if len(per_island) == 1 or kind == "all_to_all":
        assert seconds(cost) == pytest.approx(exclusive_seconds(expected, per_island, parameters), rel=1e-6)


def test_a_ring_over_two_racks_leaves_each_once_over_all_adapters(racks: Network) -> None:
    """Closed form: 2 (g-1)/g n cross between racks, an equal part over each of 72 adapters; none cross inside one."""
    cost = racks.collective("all_reduce", GIB, range(144), "ring")
    ports = racks.topology.ports
    used = dict(cost.links)
    first = racks.topology.num_links - len(racks.topology.fabric.links) - 2 * len(ports)
    out_s = [used.get(first + port, 0.0) for port in range(len(ports))]
    share_s = 2 * 143 / 144 * GIB / 72 / (50e9 * load_profile("b200").network.inter_fraction)
    assert out_s == pytest.approx([share_s] * 144)
    inside = racks.collective("all_reduce", GIB, range(72), "ring")
    assert not any(first <= link for link, _ in inside.links)


def test_what_reduces_inside_reduces_in_a_whole_rack(racks: Network) -> None:
    """A large all_reduce of a rack is done in its NVSwitch: n (1 + 1/72) through each port."""
    cost = racks.collective("all_reduce", 4 * GIB, range(72))
    named = racks.collective("all_reduce", 4 * GIB, range(72), "in_switch")
    assert cost == named
    fraction = load_profile("b200").network.intra_fraction
    assert max(s for _, s in cost.links) == pytest.approx((1 + 1 / 72) * 4 * GIB / (900e9 * fraction))


def test_domains_count_as_nodes_for_executed_step_lists() -> None:
    """Hierarchical algorithms that are executed take a domain for a node, as those that are priced."""
    wiring = parse_topology("gb200-nvl72-pods", 36)
    spec = ClusterSpec(node="dgx-b200", num_nodes=36, devices_per_node=4, wiring=wiring)
    assert spec.devices_per_island == 72
    assert replace(spec, wiring=None).devices_per_island == 4


# --- several types of nodes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> Network:
    """Return two nodes of H100 and two of A100 on one switch."""
    return network(("hgx-h100", 2), ("dgx-a100-40g", 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_bytes", [2**14, 2**22, GIB])
def test_a_group_on_one_type_costs_what_it_costs_on_that_type_alone(mixed: Network, kind: str, num_bytes: int) -> None:
    """Fractions, protocols and adapters are those of the devices concerned, wherever they lie in the cluster."""
    for name, first in (("hgx-h100", 0), ("dgx-a100-40g", 16)):
        alone = network((name, 2))
        for size in (2, 8, 16):
            one, other = (
                mixed.collective(kind, num_bytes, range(first, first + size)),
                alone.collective(kind, num_bytes, range(size)),
            )
            assert seconds(one) == pytest.approx(seconds(other), rel=1e-12)
            assert one.latency_s == pytest.approx(other.latency_s, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_bytes", [2**14, 2**22, GIB])
def test_the_slowest_of_a_group_decides(mixed: Network, kind: str, num_bytes: int) -> None:
    """A group on both types takes as long as on four nodes of the slower type."""
    types = ("hgx-h100", "dgx-a100-40g")
    across = seconds(mixed.collective(kind, num_bytes, range(32)))
    slower = [seconds(network((name, 4)).collective(kind, num_bytes, range(32))) for name in types]
    assert across == pytest.approx(max(slower), rel=0.01)


def test_links_attain_the_fraction_of_their_own_nodes(mixed: Network) -> None:
    """NVLinks of H100 and A100 nodes attain each the fraction of its profile, whichever type comes first."""
    for types in ((("hgx-h100", 1), ("dgx-a100-40g", 1)), (("dgx-a100-40g", 1), ("hgx-h100", 1))):
        net = network(*types)
        for position, (name, _) in enumerate(types):
            profile = load_profile(load_node(name).device.generation).network
            [link] = net.topology.routes(np.array([8 * position]), np.array([8 * position + 1]))[0][:1].tolist()
            rate = load_node(name).intra.bandwidth_bytes_per_s * profile.intra_fraction
            assert 1 / net.seconds_per_byte[link] == pytest.approx(rate)


def test_messages_between_types_wait_for_the_slower_library(mixed: Network) -> None:
    """Inside a type a message costs that type's closed form; from one type to the other the longer of the two."""
    a100, h100 = (load_profile(name).network.point_to_point_latency_s for name in ("a100", "h100"))
    assert a100 > h100
    hops_s = mixed.topology.latency_s[mixed.topology.routes(np.array([0]), np.array([16]))[0]].sum()
    assert mixed.message(1, 0, 16).latency_s == pytest.approx(a100 + hops_s)
    assert mixed.message(1, 16, 0).latency_s == pytest.approx(a100 + hops_s)
    inside = mixed.libraries[0].parameters
    expected = point_to_point_cost(GIB, True, replace(inside, intra_latency_s=0.6e-6))
    assert mixed.message(GIB, 0, 1).latency_s == pytest.approx(expected.latency_s)
    use = mixed.messages(GIB, np.array([0, 0, 16]), np.array([8, 16, 24]))
    one_by_one = [mixed.message(GIB, source, target).latency_s for source, target in ((0, 8), (0, 16), (16, 24))]
    assert use.latencies_s.tolist() == pytest.approx(one_by_one)


def test_many_groups_on_several_types_cost_what_each_costs(mixed: Network) -> None:
    """Priced together, groups on one type, the other and both wait and use links as they do one by one."""
    groups = np.array([[0, 1, 8, 9], [16, 17, 24, 25], [0, 1, 16, 17], [14, 15, 16, 17]])
    use = mixed.collectives("all_reduce", 2**22, groups)
    for row, group in enumerate(groups.tolist()):
        alone = mixed.collective("all_reduce", 2**22, group)
        links, took = use.of_row(row)
        assert dict(zip(links.tolist(), took.tolist(), strict=True)) == pytest.approx(dict(alone.links))
        assert use.latencies_s[row] == pytest.approx(alone.latency_s)


def test_nodes_without_nvswitch_never_reduce_in_one() -> None:
    """H100 cards on PCIe have the profile of H100 and no switch that reduces: none is chosen."""
    topology = parse_topology({"nodes": "pcie-8-gpu-server"}, 1)
    net = ClusterPricing(Cluster(load_node("hgx-h100"), 1, 8, topology), load_profile("h100")).network
    assert all("in_switch" not in protocol.algorithms for protocol in net.parameters.protocols)
    assert net.collective("all_reduce", GIB, range(8)) == net.collective("all_reduce", GIB, range(8), "ring")


# --- nodes without a switch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "members", "gb_per_s"),
    [
        ("longhorn", (0, 1), 75),
        ("longhorn", (0, 1, 2, 3), 32),
        ("longhorn", (1, 2), 32),
        ("dgx-1-v100", (0, 1), 25),
        ("dgx-1-v100", (0, 3), 50),
        ("dgx-1-v100", (0, 1, 2), 50),
        ("dgx-1-v100", (0, 1, 2, 3), 100),
        ("dgx-1-v100", tuple(range(8)), 150),
        ("pcie-8-gpu-server", (0, 1), 31.5),
        ("hgx-h100", (0, 5), 450),
    ],
)
def test_rings_inside_attain_the_smallest_cut_of_their_members(node: str, members: Any, gb_per_s: float) -> None:
    """Bonds of neighbours, where sockets lie between what joins them, and only the links among the members."""
    island = parse_topology({"nodes": node}, 1).islands[0]
    assert inside_bytes_per_s(island, members) == pytest.approx(gb_per_s * 1e9)
    assert inside_bytes_per_s(island, members[:1]) == 0


@pytest.mark.parametrize(("group", "gb_per_s"), [((0, 1), 75), ((0, 1, 2, 3), 32), ((2, 3), 75)])
def test_longhorn_is_taken_for_what_its_catalogue_entry_says(group: tuple[int, ...], gb_per_s: float) -> None:
    """Four V100 of two sockets are as slow as the bus between the sockets; two of one socket as fast as their bond."""
    topology = parse_topology({"nodes": "longhorn"}, 1)
    node, profile = load_node("longhorn"), load_profile("v100")
    net = ClusterPricing(Cluster(node, 1, 4, topology), profile).network
    assert net.parameters.intra_bandwidth_bytes_per_s == pytest.approx(
        node.intra.bandwidth_bytes_per_s * profile.network.intra_fraction
    )
    slope = net.collective("all_reduce", 2 * GIB, group, "ring"), net.collective("all_reduce", GIB, group, "ring")
    share = 2 * (len(group) - 1) / len(group) * GIB / (gb_per_s * 1e9 * profile.network.intra_fraction)
    assert seconds(slope[0]) - seconds(slope[1]) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize(("count", "rings"), [(2, 0), (3, 2), (4, 4), (5, 0), (6, 2), (7, 4), (8, 6)])
def test_a_hybrid_cube_mesh_has_so_many_rings(count: int, rings: int) -> None:
    """Rings there and back over single NVLinks of a DGX-1; no link is in more than it has room for, each way."""
    island = parse_topology({"nodes": "dgx-1-v100"}, 1).islands[0]
    found, rate = nvlink_rings(island, range(count))
    assert len(found) == rings
    assert rate == (25e9 if rings or count > 2 else 0)
    used: dict[tuple[int, int], float] = {}
    for ring in found:
        assert sorted(ring) == list(range(count))
        for hop in zip(ring, ring[1:] + ring[:1], strict=True):
            used[hop] = used.get(hop, 0.0) + rate
    links = zip(island.links.source.tolist(), island.links.target.tolist(), strict=True)
    widths = dict(zip(links, island.links.bandwidth_bytes_per_s.tolist(), strict=True))
    assert all(rate <= widths[hop] for hop, rate in used.items())


@pytest.mark.parametrize("count", [2, 3, 4, 6, 7, 8])
def test_measured_rings_of_a_hybrid_cube_mesh(shared_data: Path, count: int) -> None:
    """NCCL's all_reduce of a gigabyte over the first devices of a DGX-1 (VIA-Research/vTrain) comes out within 10 %."""
    [table] = (shared_data / "collectives" / "nccl_all_reduce_v100").glob(f"AR_GPU{count}_*")
    row = table.read_text(encoding="utf-8").splitlines()[-1].split(",")
    num_bytes, measured_s = int(row[0]), float(row[3]) * 1e-9
    topology = parse_topology({"nodes": "dgx-1-v100"}, 1)
    net = ClusterPricing(Cluster(load_node("dgx-1-v100-16g"), 1, 8, topology), load_profile("v100")).network
    assert seconds(net.collective("all_reduce", num_bytes, range(count))) == pytest.approx(measured_s, rel=0.1)


def test_quads_that_are_wired_otherwise_keep_their_own_rings() -> None:
    """Priced together, the two quads of a mesh and groups across them use links as they do one by one."""
    topology = parse_topology({"nodes": "dgx-1-v100"}, 1)
    net = ClusterPricing(Cluster(load_node("dgx-1-v100-16g"), 1, 8, topology), load_profile("v100")).network
    groups = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 4, 5], [6, 2, 7, 3], [3, 1, 0, 2]])
    for kind in ("all_reduce", "broadcast"):
        use = net.collectives(kind, GIB, groups, "ring")
        for row, group in enumerate(groups.tolist()):
            links, took = use.of_row(row)
            alone = net.collective(kind, GIB, group, "ring")
            assert dict(zip(links.tolist(), took.tolist(), strict=True)) == pytest.approx(dict(alone.links))
