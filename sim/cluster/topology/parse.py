"""Turn a description (plain values, quantities as text with units) into a topology."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from sim.cluster.topology.build import FabricOf, build
from sim.cluster.topology.catalogue import based_on, load_node, load_topology
from sim.cluster.topology.clos import ClosSpec, build_clos
from sim.cluster.topology.dragonfly import DragonflySpec, build_dragonfly
from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.fabric import Fabric, Ports
from sim.cluster.topology.island import Island
from sim.cluster.topology.links import Cable
from sim.cluster.topology.node import INSIDES, Inside, NodeLayout, lay_out
from sim.cluster.topology.reading import MOST, Section, dotted
from sim.cluster.topology.topology import Topology
from sim.cluster.topology.torus import TorusSpec, build_torus

TOPOLOGY_KEYS: Final = ("base", "nodes", "fabric", "stragglers")
NODE_KEYS: Final = (
    *("base", "devices", "inside", "nvlink", "nvlinks", "nodes_per_domain", "relay", "nics", "nic", "nics_at"),
    *("pcie", "pcie_switches", "host_link", "sockets", "socket_link"),
)
LEVEL_KEYS: Final = ("oversubscription", "uplink", "core_oversubscription", "core_link", "cores_per_spine")
FABRIC_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "switch": (),
    "leaf-spine": ("leaf_ports", "spines", "oversubscription", "uplink"),
    "fat-tree": ("radix", "leaf_ports", "leaves_per_pod", "spines_per_pod", *LEVEL_KEYS),
    "rail-optimised": ("nodes_per_leaf", "nodes_per_pod", "spines", "cross_rail", *LEVEL_KEYS),
    "torus": ("shape", "link"),
    "dragonfly": ("routers_per_group", "ports_per_router", "global_links_per_router", "local_link", "global_link"),
}


def parse_topology(description: object, num_nodes: int) -> Topology:
    """Return the topology of ``num_nodes`` nodes that a description gives.

    The description is a name of the catalogue, or a mapping with ``nodes`` (a name, a layout, or a list of groups
    ``{count, type}``), ``fabric``, ``stragglers``, and ``base``, a name of the catalogue whose keys it overrides.
    Raises TopologyError naming key, rule and remedy.
    """
    if isinstance(description, str):
        description = load_topology(description, "")
    description = based_on(description, "", load_topology)
    section = Section.of(description, "", TOPOLOGY_KEYS)
    groups = _groups(section, num_nodes)
    num_devices = sum(island.num_devices * count for island, count in groups)
    if num_devices > MOST:
        rule = f"{num_devices:,} devices are more than {MOST:,}"
        raise TopologyError("nodes", rule, "write fewer nodes")
    fabric_of = _fabric(section.entries["fabric"]) if "fabric" in section else None
    topology = build(groups, fabric_of)
    return _with_stragglers(topology, section)


def _groups(section: Section, num_nodes: int) -> list[tuple[Island, int]]:
    """Return the types of islands with how many there are of each."""
    nodes = section.get("nodes")
    if not isinstance(nodes, list):
        return [_islands(parse_node(nodes, "nodes"), num_nodes, "nodes")]
    groups, total = [], 0
    for index, entry in enumerate(nodes):
        group = Section.of(entry, f"nodes[{index}]", ("count", "type"))
        count = group.count("count")
        total += count
        groups.append(_islands(parse_node(group.get("type"), group.key("type")), count, group.key("count")))
    if total != num_nodes:
        rule = f"the groups hold {total} nodes, and the cluster {num_nodes}"
        raise TopologyError("nodes", rule, "write counts that add up to num_nodes")
    return groups


def layout_names(description: object, num_nodes: int) -> list[tuple[str, int]]:
    """Return the nodes of a description that ``parse_topology`` accepts, in order: a name, and how many nodes have it.

    The name is that of the catalogue's layout, or of the layout that the node's ``base`` names; empty where a node is
    written out in full.
    """
    if isinstance(description, str):
        description = load_topology(description, "")
    nodes = Section.of(based_on(description, "", load_topology), "", TOPOLOGY_KEYS).get("nodes")
    if not isinstance(nodes, list):
        return [(_layout_name(nodes), num_nodes)]
    return [(_layout_name(group["type"]), Section("", group).count("count")) for group in nodes]


def _layout_name(nodes: object) -> str:
    if isinstance(nodes, Mapping):
        return _layout_name(nodes["value"]) if "value" in nodes else str(nodes.get("base", ""))
    return str(nodes)


def _islands(layout: NodeLayout, num_nodes: int, where: str) -> tuple[Island, int]:
    if num_nodes < 1:
        raise TopologyError(where, f"{num_nodes} nodes make no cluster", "write 1 or more")
    if num_nodes % layout.nodes_per_domain:
        rule = f"{num_nodes} nodes do not fill domains of {layout.nodes_per_domain}"
        raise TopologyError(where, rule, "write a multiple of nodes_per_domain")
    prefix = where.removesuffix(".count") + (".type" if where.endswith(".count") else "")
    try:
        return lay_out(layout), num_nodes // layout.nodes_per_domain
    except TopologyError as error:
        raise TopologyError(dotted(prefix, error.key), error.rule, error.remedy) from error


def parse_node(description: object, where: str) -> NodeLayout:
    """Return the layout of a node: by name from the catalogue, or from a mapping."""
    if isinstance(description, str):
        name, description = description, load_node(description, where)
    else:
        name = "node"
    description = based_on(description, where, load_node)
    section = Section.of(description, where, NODE_KEYS)
    inside: Inside = section.word("inside", INSIDES)
    devices = section.count("devices")
    if devices * section.count("nodes_per_domain", 1) > 1152:
        raise TopologyError(section.key("devices"), "a node or domain has at most 1,152 devices", "write fewer")
    return NodeLayout(
        name=name,
        num_devices=devices,
        inside=inside,
        nvlink=section.cable("nvlink"),
        nvlinks=_nvlinks(section) if "nvlinks" in section else (),
        nodes_per_domain=section.count("nodes_per_domain", 1),
        pcie=section.cable("pcie"),
        host_link=section.cable("host_link"),
        pcie_switches=section.count("pcie_switches", 0, least=0),
        sockets=section.count("sockets", 1),
        socket_link=section.cable("socket_link"),
        num_nics=section.count("nics", 1 if "nic" in section else 0, least=0),
        nic=section.cable("nic"),
        nics_at_sockets=section.word("nics_at", ("switch", "socket"), "switch") == "socket",
        relay=section.word("relay", ("neighbour", "host"), "neighbour" if inside.endswith("mesh") else "host"),
    )


def _nvlinks(section: Section) -> tuple[tuple[int, int, int], ...]:
    value = section.get("nvlinks")
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and all(type(part) is int for part in row)):
            rule = f"{row!r} is not two devices and the number of links between them"
            raise TopologyError(section.key("nvlinks"), rule, "write [[0, 1, 2], ...]")
    return tuple((row[0], row[1], row[2]) for row in rows)


def _fabric(description: object) -> FabricOf:
    """Return what builds the network. Its keys are checked here, what they make of the ports when it is built."""
    every = tuple(dict.fromkeys(key for keys in FABRIC_KEYS.values() for key in keys))
    kind = Section.of(description, "fabric", ("kind", *every)).word("kind", tuple(FABRIC_KEYS))
    section = Section.of(description, "fabric", ("kind", *FABRIC_KEYS[kind]))
    return _FABRICS[kind](section)


def _indirect(make: Callable[[Ports], Fabric], ports: Ports, direct: bool) -> Fabric:
    if direct:
        raise TopologyError("nodes.nics", "only a torus joins devices without adapters", "write nics: 1 or more")
    return make(ports)


def _clos(spec: ClosSpec) -> FabricOf:
    def make(ports: Ports) -> Fabric:
        return build_clos(spec, ports)

    return partial(_indirect, make)


def _switch(section: Section) -> FabricOf:
    del section
    return _clos(ClosSpec())


def _leaf_spine(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    spines, leaf_ports = section.count("spines"), section.count("leaf_ports")
    return _clos(ClosSpec(leaf_ports=leaf_ports, spines=spines, uplink=uplink, oversubscription=over))


def _fat_tree(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    core_link, core_over = _level(section, "core_link", "core_oversubscription")
    sizes = ("leaf_ports", "leaves_per_pod", "spines_per_pod", "cores_per_spine")
    radix = section.count("radix", 0, least=0)
    if radix % 2:
        raise TopologyError(section.key("radix"), f"half of {radix} ports cannot go up", "write an even number")
    half = radix // 2 if radix else None
    leaf_ports, leaves_per_pod, spines, cores = (section.count(size, half) for size in sizes)
    return _clos(
        ClosSpec(
            leaf_ports=leaf_ports,
            leaves_per_pod=leaves_per_pod,
            spines=spines,
            cores_per_spine=cores,
            uplink=uplink,
            oversubscription=over,
            core_link=core_link,
            core_oversubscription=core_over,
            most_pods=radix,
        )
    )


def _rail_optimised(section: Section) -> FabricOf:
    uplink, over = _level(section, "uplink", "oversubscription")
    core_link, core_over = _level(section, "core_link", "core_oversubscription")
    cross = section.word("cross_rail", ("nvlink", "spine"), "nvlink")
    spines = section.count("spines", 0, least=0)
    if cross == "spine" and not spines:
        raise TopologyError(section.key("cross_rail"), "there are no spines", "write spines: 1 or more")
    return _clos(
        ClosSpec(
            leaf_ports=section.count("nodes_per_leaf", 0),
            nodes_per_pod=section.count("nodes_per_pod", 0),
            spines=spines,
            cores_per_spine=section.count("cores_per_spine", 0),
            uplink=uplink,
            oversubscription=over,
            core_link=core_link,
            core_oversubscription=core_over,
            rails=True,
            cross_rail="spine" if cross == "spine" else "nvlink",
        )
    )


def _level(section: Section, link: str, oversubscription: str) -> tuple[Cable | None, float]:
    """Return the links up from a level and its oversubscription; only one of the two may fix the bandwidth."""
    cable = section.cable(link, sized=False)
    if cable and cable.bandwidth_bytes_per_s and oversubscription in section:
        rule = f"{link}.bandwidth already says how much goes up"
        raise TopologyError(section.key(oversubscription), rule, "keep one of the two")
    return cable, section.factor(oversubscription, 1.0)


def _torus(section: Section) -> FabricOf:
    shape: Any = section.get("shape")
    if not (isinstance(shape, list) and 1 <= len(shape) <= 8 and all(type(k) is int and 1 <= k <= MOST for k in shape)):
        rule = f"{shape!r} is not a list of 1 to 8 sizes"
        raise TopologyError(section.key("shape"), rule, "write the routers of each dimension, as in [8, 8, 4]")
    spec = TorusSpec(shape=tuple(shape), link=section.needed_cable("link"))

    def make(ports: Ports, direct: bool) -> Fabric:
        return build_torus(spec, ports, direct=direct)

    return make


def _dragonfly(section: Section) -> FabricOf:
    spec = DragonflySpec(
        routers_per_group=section.count("routers_per_group"),
        ports_per_router=section.count("ports_per_router"),
        global_links_per_router=section.count("global_links_per_router"),
        local_link=section.needed_cable("local_link"),
        global_link=section.needed_cable("global_link"),
    )

    def make(ports: Ports) -> Fabric:
        return build_dragonfly(spec, ports)

    return partial(_indirect, make)


_FABRICS: Final[Mapping[str, Callable[[Section], FabricOf]]] = {
    "switch": _switch,
    "leaf-spine": _leaf_spine,
    "fat-tree": _fat_tree,
    "rail-optimised": _rail_optimised,
    "torus": _torus,
    "dragonfly": _dragonfly,
}


def _with_stragglers(topology: Topology, section: Section) -> Topology:
    """Return the topology with each straggler of the list, one after the other."""
    entries = section.entries.get("stragglers", [])
    if not isinstance(entries, list):
        raise TopologyError("stragglers", "a list belongs here", "write [{device: 17, slowdown: 1.3}]")
    devices: dict[int, float] = {}
    links: dict[str, float] = {}
    for index, entry in enumerate(entries):
        one = Section.of(entry, f"stragglers[{index}]", ("device", "link", "slowdown"))
        slowdown = one.factor("slowdown", least=1.0)
        if ("device" in one) == ("link" in one):
            raise TopologyError(one.where, "a straggler is a device or a link", "write one of device: and link:")
        if "device" in one:
            device = one.count("device", least=0)
            if device >= topology.num_devices:
                rule = f"there is no device {device}"
                raise TopologyError(one.key("device"), rule, f"devices are 0 to {topology.num_devices - 1}")
            devices[device] = devices.get(device, 1.0) * slowdown
        else:
            name = str(one.get("link"))
            links[name] = links.get(name, 1.0) * slowdown
    try:
        return topology.slowed(devices, links) if entries else topology
    except TopologyError as error:
        raise TopologyError("stragglers", error.rule, error.remedy) from error
