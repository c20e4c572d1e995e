"""Clusters for the topology tests, and what an independent graph library says of them."""

from typing import Any

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Routes, Topology

FAST = {"bandwidth": "300 GB/s", "latency": "0.3 us"}
PCIE = {"bandwidth": "30 GB/s", "latency": "0.2 us"}
NIC = {"bandwidth": "10 GB/s", "latency": "1 us", "message": "0.1 us"}

SINGLE = {"devices": 1, "inside": "pcie", "pcie": PCIE, "nics": 1, "nic": NIC}
"""One device, one adapter: what is left is the network."""
CHIP = {"devices": 1, "inside": "pcie"}
"""A device that is its own router."""
SWITCHED = {"devices": 4, "inside": "nvswitch", "nvlink": FAST, "pcie": PCIE, "nics": 4, "nic": NIC}
TREE = {
    "devices": 8, "inside": "pcie", "pcie": PCIE, "pcie_switches": 4, "sockets": 2, "socket_link": FAST,
    "nics": 2, "nic": NIC,
}  # fmt: skip

TORUS_LINK = {"bandwidth": "50 GB/s"}


def cluster(nodes: Any, num_nodes: int, **fabric: Any) -> Topology:
    """Return a cluster of one type of node."""
    return parse_topology({"nodes": nodes} | ({"fabric": fabric} if fabric else {}), num_nodes)


def torus(*shape: int) -> Topology:
    """Return a torus of devices."""
    return cluster(CHIP, int(np.prod(shape)), kind="torus", shape=list(shape), link=TORUS_LINK)


def fat_tree(radix: int, **more: Any) -> Topology:
    """Return a full k-ary fat tree of single devices."""
    return cluster(SINGLE, radix**3 // 4, kind="fat-tree", radix=radix, **more)


def dragonfly(a: int, p: int, h: int, groups: int | None = None) -> Topology:
    """Return a dragonfly of single devices, of a h + 1 groups where nothing else is said."""
    sizes = {"routers_per_group": a, "ports_per_router": p, "global_links_per_router": h}
    links = {"local_link": {"bandwidth": "100 GB/s"}, "global_link": {"bandwidth": "10 GB/s"}}
    return cluster(SINGLE, (groups or a * h + 1) * a * p, kind="dragonfly", **sizes, **links)


def graph(topology: Topology) -> nx.DiGraph:
    """Return the links as a graph, with their capacities; no two links join the same vertices the same way."""
    found = nx.DiGraph()
    found.add_nodes_from(range(topology.num_vertices))
    columns = (topology.source, topology.target, topology.bandwidth_bytes_per_s)
    for link, (source, target, bandwidth) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        assert not found.has_edge(source, target)
        found.add_edge(source, target, capacity=bandwidth, link=link)
    return found


def all_routes(topology: Topology) -> tuple[np.ndarray, np.ndarray, Routes]:
    """Return all pairs of devices and their routes."""
    count = topology.num_devices
    sources, targets = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
    return sources, targets, topology.routes(sources, targets)


def assert_connected(topology: Topology, sources: np.ndarray, targets: np.ndarray, routes: Routes) -> None:
    """Assert that each route leads from its source to its target, link by link, and uses no link twice."""
    for index, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        links = routes[index]
        at = [source, *topology.target[links].tolist()]
        assert topology.source[links].tolist() == at[:-1]
        assert at[-1] == target
        assert len(set(links.tolist())) == len(links)


def max_flow_between(topology: Topology, half: np.ndarray) -> float:
    """Return the largest flow from the devices of one half to the others."""
    network = graph(topology)
    for device, first in enumerate(half.tolist()):
        network.add_edge(*(("from", device) if first else (device, "to")), capacity=float("inf"))
    return float(nx.maximum_flow_value(network, "from", "to"))


def device_half(topology: Topology) -> np.ndarray:
    """Return the devices on one side of the bisection that the network claims."""
    assert topology.fabric is not None
    ports = topology.fabric.first_half(topology.ports.bandwidth_bytes_per_s)
    islands = np.zeros(topology.num_islands, bool)
    islands[topology.ports.island[ports]] = True
    half: np.ndarray = islands[topology.device_island]
    return half


@st.composite
def node_layouts(draw: Any) -> dict[str, Any]:
    """Draw a node of any inside, with any number of adapters, sockets and PCIe switches that fit."""
    inside = draw(st.sampled_from(["nvswitch", "hybrid-cube-mesh", "nvlink-pairs", "pcie"]))
    devices = 8 if inside == "hybrid-cube-mesh" else draw(st.sampled_from([2, 4, 8]))
    sockets = draw(st.sampled_from([1, 2]))
    switches = draw(st.sampled_from([s for s in (0, 1, 2, 4, 8) if s <= devices and (s == 0 or s % sockets == 0)]))
    return {
        "devices": devices, "inside": inside, "nvlink": FAST, "pcie": PCIE, "pcie_switches": switches,
        "sockets": sockets, "socket_link": FAST, "nic": NIC,
        "nics": draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= devices])),
        "nics_at": draw(st.sampled_from(["switch", "socket"])),
        "relay": draw(st.sampled_from(["neighbour", "host"])),
        "nodes_per_domain": draw(st.sampled_from([1, 2])) if inside == "nvswitch" else 1,
    }  # fmt: skip


@st.composite
def fabrics(draw: Any, num_nodes: int) -> dict[str, Any]:
    """Draw any network that holds the nodes."""
    kind = draw(st.sampled_from(["switch", "leaf-spine", "fat-tree", "rail-optimised", "torus", "dragonfly"]))
    small = st.integers(1, 4)
    over = {"oversubscription": draw(st.sampled_from([1, 1.5, 4]))}
    match kind:
        case "leaf-spine":
            return {"kind": kind, "leaf_ports": draw(small), "spines": draw(small)} | over
        case "fat-tree":
            sizes = ("leaf_ports", "leaves_per_pod", "spines_per_pod", "cores_per_spine")
            return {"kind": kind, "core_oversubscription": 2} | {size: draw(small) for size in sizes} | over
        case "rail-optimised":
            sizes = {"nodes_per_leaf": draw(small), "spines": draw(small)}
            return {"kind": kind, "cross_rail": draw(st.sampled_from(["nvlink", "spine"]))} | sizes | over
        case "torus":
            first = draw(st.sampled_from([k for k in range(1, num_nodes + 1) if num_nodes % k == 0]))
            return {"kind": kind, "shape": [first, num_nodes // first], "link": TORUS_LINK}
        case "dragonfly":
            sizes = {"routers_per_group": draw(st.integers(2, 4)), "ports_per_router": draw(small)}
            links = {"local_link": NIC, "global_link": NIC}
            return {"kind": kind, "global_links_per_router": 50} | sizes | links
    return {"kind": kind}
