"""Random clusters of every kind, with stragglers, that the property tests draw from."""

from typing import Any

from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.prices.pricing import ClusterPricing
from tests.sim.cluster.topology_graphs import CHIP, FAST, PCIE, SINGLE, SWITCHED, TREE

PAIRS = {
    "devices": 4, "inside": "nvlink-pairs", "nvlink": FAST, "pcie": PCIE, "sockets": 2, "socket_link": PCIE,
    "nics": 1, "nic": {"bandwidth": "10 GB/s", "latency": "1 us"},
}  # fmt: skip
DOMAIN = SWITCHED | {"nodes_per_domain": 2}
LAYOUTS: dict[str, tuple[Any, int]] = {
    "single": (SINGLE, 1), "switched": (SWITCHED, 4), "pcie": (TREE, 8), "pairs": (PAIRS, 4),
    "cube-mesh": ("dgx-1-v100", 8), "domain": (DOMAIN, 4),
}  # fmt: skip
ALGORITHMS = {
    "all_reduce": ("ring", "tree", "direct", "hierarchical"),
    "all_gather": ("ring", "direct", "bruck", "hierarchical"),
    "reduce_scatter": ("ring", "direct", "hierarchical"),
}
KINDS = ("switch", "leaf-spine", "fat-tree", "rail-optimised", "torus", "dragonfly")
LINK = {"bandwidth": "5 GB/s", "latency": "0.4 us"}


def _shape(num_nodes: int) -> list[int]:
    first = next(size for size in range(int(num_nodes**0.5), 0, -1) if num_nodes % size == 0)
    return [first, num_nodes // first]


@st.composite
def _fabrics(draw: Any, kind: str, num_nodes: int) -> dict[str, Any]:
    over = {"oversubscription": draw(st.sampled_from([1, 1.5, 2, 5]))}
    sizes = {"leaf_ports": draw(st.integers(1, 6)), "spines": draw(st.integers(1, 3))}
    match kind:
        case "leaf-spine":
            return {"kind": kind, **sizes, **over}
        case "fat-tree":
            pod = {"leaves_per_pod": draw(st.integers(1, 3)), "spines_per_pod": sizes["spines"]}
            cores = {"cores_per_spine": draw(st.integers(1, 2)), "core_oversubscription": draw(st.sampled_from([1, 3]))}
            return {"kind": kind, "leaf_ports": sizes["leaf_ports"], **pod, **cores, **over}
        case "rail-optimised":
            cross = {"cross_rail": draw(st.sampled_from(["nvlink", "spine"]))}
            return {"kind": kind, "nodes_per_leaf": draw(st.integers(1, 4)), "spines": sizes["spines"], **cross, **over}
        case "torus":
            return {"kind": kind, "shape": _shape(num_nodes), "link": LINK}
        case "dragonfly":
            ports = max(4, num_nodes)  # nodes have up to 8 adapters, and 7 groups of 3 routers can be joined
            group = {"routers_per_group": 3, "ports_per_router": ports, "global_links_per_router": 2}
            return {"kind": kind, **group, "local_link": LINK, "global_link": LINK}
    return {"kind": kind}


@st.composite
def stragglers(draw: Any, num_devices: int, link_names: list[str]) -> list[dict[str, Any]]:
    """Draw up to three slow devices and links; of no link names, devices alone."""
    slow = st.sampled_from([1.3, 2.0, 10.0])
    devices = st.builds(lambda d, s: {"device": d, "slowdown": s}, st.integers(0, num_devices - 1), slow)
    if not link_names:
        return draw(st.lists(devices, max_size=3))
    links = st.builds(lambda name, s: {"link": name, "slowdown": s}, st.sampled_from(link_names), slow)
    return draw(st.lists(devices | links, max_size=3))


def straggling(node: str, num_nodes: int, per_node: int, *slow: dict[str, Any]) -> ClusterPricing:
    """Return prices on nodes of one kind, with slow devices and links.

    straggling("dgx-2", 2, 1, {"link": "node 1 nic 0 in", "slowdown": 2.0})
    """
    spec = load_node(node)
    description = {"nodes": node, "fabric": {"kind": "switch"}, "stragglers": list(slow)}
    cluster = Cluster(spec, num_nodes, per_node, parse_topology(description, num_nodes))
    return ClusterPricing(cluster, load_profile(spec.device.generation))


def single_devices(num_nodes: int, *, bandwidth: str, slow_device: int, slowdown: float) -> ClusterPricing:
    """Return prices on nodes of one device and one adapter of some bandwidth, one of the devices slow."""
    nodes = SINGLE | {"nic": {"bandwidth": bandwidth, "latency": "1 us"}}
    slow = [{"device": slow_device, "slowdown": slowdown}]
    topology = parse_topology({"nodes": nodes, "fabric": {"kind": "switch"}, "stragglers": slow}, num_nodes)
    node = load_node("hgx-h100")
    return ClusterPricing(Cluster(node, num_nodes, 1, topology), load_profile(node.device.generation))


def slow_adapters(num_nodes: int) -> ClusterPricing:
    """Return prices on nodes of one device that exchange ten bits a second, the first device slow."""
    return single_devices(num_nodes, bandwidth="10 bit/s", slow_device=0, slowdown=1.1)


@st.composite
def extreme_clusters(draw: Any, num_ranks: int) -> ClusterPricing:
    """Draw the prices on nodes whose adapters take years or next to nothing, some of the devices slow."""
    layout, per_node = draw(st.sampled_from([(SINGLE, 1), (SWITCHED, 4)]))
    bandwidth = draw(st.sampled_from(["10 bit/s", "100 Kbit/s", "1 Mbit/s", "10 GB/s", "1000 PB/s"]))
    nic = {"bandwidth": bandwidth, "latency": draw(st.sampled_from(["1 ns", "1 us", "100 s"]))}
    num_nodes = -(-num_ranks // per_node)
    description = {"nodes": layout | {"nic": nic}, "fabric": {"kind": "switch"}}
    slow = draw(stragglers(num_nodes * per_node, []))
    topology = parse_topology(description | {"stragglers": slow}, num_nodes)
    node = load_node("hgx-h100")
    return ClusterPricing(Cluster(node, num_nodes, per_node, topology), load_profile(node.device.generation))


@st.composite
def clusters(draw: Any, num_ranks: int) -> ClusterPricing:
    """Draw the prices on a cluster of any kind with a device for every rank, and maybe some to spare."""
    kind = draw(st.sampled_from(KINDS))
    name = draw(st.sampled_from([*LAYOUTS, *(["chip"] if kind == "torus" else [])]))
    layout, per_node = (CHIP, 1) if name == "chip" else LAYOUTS[name]
    used = draw(st.sampled_from([per_node, max(1, per_node // 2), max(1, per_node - 1)]))
    num_nodes = -(-num_ranks // used) + draw(st.integers(0, 2))
    num_nodes += num_nodes % 2 if name == "domain" else 0
    description = {"nodes": layout, "fabric": draw(_fabrics(kind, num_nodes))}
    sound = parse_topology(description, num_nodes)
    links = [sound.name_of(link) for link in range(sound.num_links)] or ["none"]
    slow = draw(stragglers(sound.num_devices, links)) if sound.num_links else []
    topology = parse_topology(description | {"stragglers": slow}, num_nodes)
    node = load_node("hgx-h100")
    algorithms = {kind: draw(st.sampled_from(["auto", *names])) for kind, names in ALGORITHMS.items()}
    cluster = Cluster(node, num_nodes, used, topology)
    return ClusterPricing(cluster, load_profile(node.device.generation), algorithms=algorithms)
