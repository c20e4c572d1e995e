"""Descriptions of topologies: what they may say, what is refused and how, and the catalogue."""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import numpy as np
import pytest
import yaml

from costmodels.hardware import list_nodes, load_node
from sim.cluster.topology.catalogue import list_node_layouts, list_topologies
from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.parse import parse_topology
from tests.sim.cluster.topology_graphs import CHIP, FAST, NIC, SINGLE, SWITCHED, TREE

LEAF_SPINE = {"kind": "leaf-spine", "leaf_ports": 2, "spines": 2}


def test_quantities_become_si() -> None:
    """Bandwidth in bytes/s, also where it is written in bits; latency and time per message in seconds."""
    nic = {"bandwidth": "400 Gbit/s", "latency": "1.5 us", "message": "20 ns"}
    topology = parse_topology({"nodes": SINGLE | {"nic": nic}, "fabric": {"kind": "switch"}}, 2)
    chosen = topology.kind == LinkKind.NIC
    assert set(topology.bandwidth_bytes_per_s[chosen].tolist()) == {50e9}
    assert topology.latency_s[chosen] == pytest.approx(1.5e-6)
    assert topology.message_s[chosen] == pytest.approx(20e-9)


def test_a_base_is_overridden_key_by_key() -> None:
    """``base`` takes a whole topology of the catalogue; what is written beside it replaces its keys, also deep ones."""
    plain = parse_topology("superpod-h100", 64)
    other = parse_topology(
        {"base": "superpod-h100", "nodes": {"base": "hgx-h100", "nics": 4}, "fabric": {"spines": 4}}, 64
    )
    assert other.fabric is not None
    assert plain.fabric is not None
    assert (len(plain.ports), len(other.ports)) == (512, 256)
    assert (plain.fabric.num_switches, other.fabric.num_switches) == (16 + 16, 8 + 4)


def test_another_kind_of_network_replaces_the_whole_of_it() -> None:
    """A base's leaf-spine keys do not linger under a torus."""
    torus = {"kind": "torus", "shape": [8, 8], "link": {"bandwidth": "1 GB/s"}}
    topology = parse_topology({"base": "superpod-h100", "fabric": torus}, 64)
    assert topology.fabric is not None
    assert topology.fabric.num_switches == 64


def test_parallel_links_may_fix_the_bandwidth_instead_of_the_oversubscription() -> None:
    """uplink.bandwidth is that of a whole leaf-spine link, and says what goes up."""
    fabric = LEAF_SPINE | {"uplink": {"bandwidth": "7 GB/s", "latency": "1 us"}}
    topology = parse_topology({"nodes": SINGLE, "fabric": fabric}, 4)
    assert set(topology.bandwidth_bytes_per_s[topology.kind == LinkKind.LEAF_SPINE].tolist()) == {7e9}


def test_rails_without_spines_are_apart() -> None:
    """Each rail may have its one switch and no other: other rails are reached over NVLink alone."""
    topology = parse_topology({"nodes": SWITCHED, "fabric": {"kind": "rail-optimised"}}, 3)
    assert topology.fabric is not None
    assert topology.fabric.num_switches == 4
    assert LinkKind.LEAF_SPINE not in topology.kinds()


def test_stragglers_are_read() -> None:
    """Devices by number, links by name; one named twice is slow twice over."""
    stragglers = [
        {"device": 3, "slowdown": 1.3}, {"device": 3, "slowdown": 2}, {"link": "node 1 nic 0 out", "slowdown": 4},
    ]  # fmt: skip
    topology = parse_topology({"nodes": SINGLE, "fabric": LEAF_SPINE, "stragglers": stragglers}, 4)
    assert topology.device_slowdown.tolist() == [1.0, 1.0, 1.0, 2.6]
    assert topology.bandwidth_bytes_per_s[topology.link_named("node 1 nic 0 out")] == 2.5e9


def with_nodes(**changes: Any) -> dict[str, Any]:
    """Return a cluster of PCIe nodes with other keys; a key of None is left out."""
    node = {key: value for key, value in (TREE | changes).items() if value is not None}
    return {"nodes": node, "fabric": {"kind": "switch"}}


def with_fabric(nodes: Mapping[str, Any] | None = None, **fabric: Any) -> dict[str, Any]:
    """Return a cluster of single devices on a network."""
    return {"nodes": nodes or SINGLE, "fabric": fabric}


def with_straggler(**straggler: Any) -> dict[str, Any]:
    """Return a cluster with one straggler."""
    return {"nodes": SINGLE, "fabric": {"kind": "switch"}, "stragglers": [straggler]}


MESH = {"inside": "nvlink-mesh", "nvlink": FAST}
DRAGONFLY = {"kind": "dragonfly", "local_link": NIC, "global_link": NIC, "ports_per_router": 1}

REFUSED: list[tuple[Any, str, str, str]] = [
    ("superpod-h10", "", "no topology 'superpod-h10'", "did you mean superpod-h100"),
    ({"nodes": "hgx-h10"}, "nodes", "no node layout 'hgx-h10'", "hgx-h100"),
    ({"base": "nothing like it"}, "base", "no topology", "known: "),
    ([1], "", "is not a mapping", "write keys below it"),
    ({"fabric": {"kind": "switch"}}, "nodes", "required and missing", "add nodes: to the topology, or base: "),
    ({"nodes": {"nic": NIC}}, "nodes.inside", "required and missing", "add inside: to nodes, or base: "),
    ({"nodes": SINGLE, "fabrik": {}}, "fabrik", "unknown key", "did you mean fabric"),
    ({"nodes": SINGLE}, "fabric", "several nodes need a network", "write fabric: {kind: switch}"),
    (with_nodes(devices=0), "nodes.devices", "whole number from 1", "as in 8"),
    (with_nodes(devices=True), "nodes.devices", "whole number from 1", "as in 8"),
    (with_nodes(inside="nvswich"), "nodes.inside", "there is no 'nvswich'", "did you mean nvswitch"),
    (with_nodes(nics=3), "nodes.nics", "3 adapters do not share 8 devices evenly", "divides devices"),
    (with_nodes(nics=0, nic=None), "nodes.nics", "no way to the network", "1 or more"),
    (with_nodes(nics=0), "nodes.nics", "no adapter has it", "1 or more"),
    (with_nodes(pcie_switches=3), "nodes.pcie_switches", "3 PCIe switches do not share", "divides devices"),
    (with_nodes(sockets=3), "nodes.sockets", "1 or 2 sockets", "write 1 or 2"),
    (with_nodes(socket_link=None), "nodes.socket_link", "two sockets need it", "write socket_link:"),
    (with_nodes(pcie=None), "nodes.pcie", "reach adapters", "write pcie:"),
    (with_nodes(nic=None), "nodes.nic", "there are 2 adapters", "write nic:"),
    (with_nodes(inside="nvswitch"), "nodes.nvlink", "nvswitch needs it", "write nvlink:"),
    (with_nodes(inside="hybrid-cube-mesh", devices=4, nvlink=FAST), "nodes.devices", "8 devices", "devices: 8"),
    (with_nodes(nodes_per_domain=2), "nodes.nodes_per_domain", "only an NVSwitch", "inside: nvswitch"),
    (with_nodes(**MESH, nvlinks=[[0, 9, 1]]), "nodes.nvlinks", "[0, 9, 1] is not two devices", "[device, device,"),
    (with_nodes(nvlinks=[[0, 1]]), "nodes.nvlinks", "[0, 1] is not two devices", "[[0, 1, 2], ...]"),
    (with_nodes(nic={"bandwidth": "10 GB/s", "speed": 1}), "nodes.nic.speed", "unknown key", "bandwidth"),
    (with_nodes(nic={"latency": "1 us"}), "nodes.nic.bandwidth", "required", "add bandwidth:"),
    (with_nodes(nic={"bandwidth": 10}), "nodes.nic.bandwidth", "10 has no unit", "400 Gbit/s"),
    (with_nodes(nic={"bandwidth": "10 Gb/s"}), "nodes.nic.bandwidth", "bits or bytes", "400 Gbit/s"),
    (with_nodes(nic={"bandwidth": "0 GB/s"}), "nodes.nic.bandwidth", "more than 0", "400 Gbit/s"),
    (with_nodes(nic={"bandwidth": "1 GB/s", "latency": "-1 us"}), "nodes.nic.latency", "not negative", "2.5 us"),
    (
        with_nodes(nic={"bandwidth": {"value": "1 GB/s", "bidirectional": "3 GB/s"}}),
        "nodes.nic.bandwidth",
        "half",
        "correct",
    ),
    ({"nodes": [{"count": 1, "type": SINGLE}]}, "nodes", "hold 1 nodes, and the cluster 4", "add up to num_nodes"),
    ({"nodes": [{"count": 4, "type": SINGLE | {"nics": 2}}]}, "nodes[0].type.nics", "2 adapters", "divides"),
    ({"nodes": "gb200-tray"}, "nodes", "4 nodes do not fill domains of 18", "multiple of nodes_per_domain"),
    (with_fabric(kind="leaf-spin"), "fabric.kind", "there is no 'leaf-spin'", "did you mean leaf-spine"),
    (with_fabric(kind="switch", spines=2), "fabric.spines", "unknown key", "known: kind"),
    (with_fabric(kind="leaf-spine", leaf_ports=2), "fabric.spines", "required", "add spines:"),
    (with_fabric(**LEAF_SPINE, oversubscription=0), "fabric.oversubscription", "0 is not a number from 1", "as in 1.5"),
    (with_fabric(**LEAF_SPINE, oversubscription=2, uplink=NIC), "fabric.oversubscription", "already says", "keep one"),
    (with_fabric(kind="fat-tree", radix=3), "fabric.radix", "half of 3 ports", "even"),
    (with_fabric(kind="fat-tree", radix=2), "fabric", "4 adapters on a tree that holds 2", "larger radix"),
    (with_fabric(kind="fat-tree", leaf_ports=1), "fabric.leaves_per_pod", "required", "add leaves_per_pod:"),
    (with_fabric(kind="rail-optimised", nodes_per_leaf=2), "fabric.spines", "2 leaf switches need spines", "spines: 1"),
    (
        with_fabric(kind="rail-optimised", nodes_per_leaf=2, nodes_per_pod=3, spines=1),
        "fabric.nodes_per_pod",
        "3 nodes",
        "mult",
    ),
    (
        with_fabric(kind="rail-optimised", nodes_per_leaf=1, nodes_per_pod=2, spines=1),
        "fabric.cores_per_spine",
        "2 pods",
        "1 or",
    ),
    (with_fabric(kind="rail-optimised", cross_rail="spine"), "fabric.cross_rail", "no spines", "spines: 1"),
    (with_fabric(kind="torus", shape=[3, 2], link=NIC), "fabric.shape", "3 x 2 = 6 routers for 4 nodes", "product"),
    (with_fabric(kind="torus", shape=4, link=NIC), "fabric.shape", "4 is not a list", "as in [8, 8, 4]"),
    (with_fabric(kind="torus", shape=[4]), "fabric.link", "required", "add link:"),
    (with_fabric(CHIP, kind="switch"), "nodes.nics", "only a torus joins devices without adapters", "nics: 1"),
    (with_fabric(**DRAGONFLY, routers_per_group=1, global_links_per_router=2), "fabric", "4 groups", "more routers"),
    (with_fabric(**DRAGONFLY, routers_per_group=10**5, global_links_per_router=1), "fabric", "9,999,900,000", "fewer"),
    (with_fabric(kind="leaf-spine", leaf_ports=1, spines=10**7 // 4), "fabric.spines", "whole number", "as in 8"),
    (
        with_fabric(kind="fat-tree", leaf_ports=1, leaves_per_pod=1, spines_per_pod=10**4, cores_per_spine=10**4),
        "fabric",
        "links, more than",
        "fewer switches",
    ),
    (with_straggler(device=4, slowdown=2), "stragglers[0].device", "no device 4", "devices are 0 to 3"),
    (with_straggler(device=0, slowdown=0.5), "stragglers[0].slowdown", "0.5 is not a number from 1", "as in 1.5"),
    (with_straggler(device=0), "stragglers[0].slowdown", "required", "add slowdown:"),
    (with_straggler(slowdown=2), "stragglers[0]", "a device or a link", "one of device: and link:"),
    (with_straggler(link="node 1 nic 0 ot", slowdown=2), "stragglers", "no link", "'node 1 nic 0 out'"),
]


@pytest.mark.parametrize(("description", "key", "rule", "remedy"), REFUSED)
def test_bad_descriptions_are_refused(description: Any, key: str, rule: str, remedy: str) -> None:
    """Each broken rule names its key, says what is wrong and what to write instead."""
    if isinstance(description, dict) and isinstance(description.get("nodes"), list):
        description = description | {"fabric": {"kind": "switch"}}
    with pytest.raises(TopologyError) as caught:
        parse_topology(description, 4)
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_mixed_numbers_of_adapters_make_no_rails() -> None:
    """Rails need the same number of adapters on every node."""
    nodes = [{"count": 1, "type": SINGLE}, {"count": 1, "type": SWITCHED}]
    with pytest.raises(TopologyError, match="nodes have 1 to 4 adapters"):
        parse_topology({"nodes": nodes, "fabric": {"kind": "rail-optimised"}}, 2)


@pytest.mark.parametrize("num_nodes", [0, 10**9])
def test_numbers_of_nodes_that_make_no_cluster_are_refused(num_nodes: int) -> None:
    """None, and more devices than are ever built."""
    with pytest.raises(TopologyError):
        parse_topology({"nodes": SINGLE, "fabric": {"kind": "switch"}}, num_nodes)


def catalogue() -> Mapping[str, Any]:
    """Return the catalogue as it is written."""
    text = resources.files("costmodels").joinpath("catalogue", "topologies.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Any] = yaml.safe_load(text)
    return entries


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; one with its source is one value."""
    if isinstance(value, dict) and "value" not in value:
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}")
    else:
        yield path, value


def test_every_number_of_the_catalogue_has_a_source() -> None:
    """Values are {value, source}, with ``bidirectional`` where a data sheet has both directions; words need none."""
    words = ("inside", "kind", "nodes")
    for path, value in leaves(catalogue(), ""):
        if path.split(".")[-1] not in words:
            assert set(value) <= {"value", "source", "bidirectional"}, path
            assert len(value["source"]) > 10 or value["source"] in {"the same", "by definition"}, path


def test_every_layout_and_topology_of_the_catalogue_is_used_in_some_test_size() -> None:
    """All layouts build, alone and, chips apart, on a switch."""
    assert {"dgx-1-v100", "longhorn", "gb200-tray"} <= set(list_node_layouts())
    assert len(list_topologies()) >= 7
    for name in list_node_layouts():
        alone = parse_topology({"nodes": name}, 18 if name == "gb200-tray" else 1)
        assert alone.num_devices == alone.islands[0].num_devices
        if name != "torus-chip":
            assert parse_topology({"nodes": name, "fabric": {"kind": "switch"}}, 36).num_nodes == 36


@pytest.mark.parametrize("name", list_nodes())
def test_layouts_agree_with_the_catalogue_of_nodes(name: str) -> None:
    """A node of both catalogues has the same devices, adapters and adapter bandwidth in both."""
    node, island = load_node(name), parse_topology({"nodes": name}, 1).islands[0]
    assert island.num_devices == node.devices_per_node
    assert island.num_ports == node.nics_per_node
    assert island.nic is not None
    assert island.nic.bandwidth_bytes_per_s == node.nic.bandwidth_bytes_per_s
    links = island.links
    switched = links.kind == LinkKind.NVSWITCH
    if switched.any():
        assert set(links.bandwidth_bytes_per_s[switched].tolist()) == {node.intra.bandwidth_bytes_per_s}
    if (links.kind == LinkKind.HOST).any() or name == "local-cpu":
        return
    pcie = (links.kind == LinkKind.PCIE) & (links.source < island.num_devices)
    assert np.allclose(links.bandwidth_bytes_per_s[pcie], node.host.device_bandwidth_bytes_per_s)


def test_latency_of_a_hop_between_nodes_is_the_catalogues() -> None:
    """On one switch, the links from GPU to GPU of two nodes take NCCL's 2.7 us together, as the node catalogue says."""
    topology = parse_topology({"nodes": "hgx-h100", "fabric": {"kind": "switch"}}, 2)
    route = topology.routes(np.array([0]), np.array([8]))[0]
    assert topology.latency_s[route].sum() == pytest.approx(load_node("hgx-h100").nic.latency_s)
    inside = topology.routes(np.array([0]), np.array([7]))[0]
    assert topology.latency_s[inside].sum() == pytest.approx(load_node("hgx-h100").intra.latency_s)
