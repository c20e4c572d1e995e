"""Parse a topology from a description: plain values, with quantities as text with units."""

from collections.abc import Mapping
from typing import Final

from sim.cluster.topology.build import build
from sim.cluster.topology.catalogue import based_on, load_node, load_topology
from sim.cluster.topology.errors import TopologyError, quoted
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.nodes.node import INSIDES, Inside, NodeLayout, lay_out
from sim.cluster.topology.parse_fabric import fabric_keys, fabric_of
from sim.cluster.topology.reading import MOST, Section, dotted
from sim.cluster.topology.topology import Topology

TOPOLOGY_KEYS: Final = ("base", "nodes", "fabric", "stragglers")
NODE_KEYS: Final = (
    *("base", "devices", "inside", "nvlink", "nvlinks", "nodes_per_domain", "relay", "nics", "nic", "nics_at"),
    *("pcie", "pcie_switches", "host_link", "sockets", "socket_link"),
)


def parse_topology(description: object, num_nodes: int) -> Topology:
    """Return the described topology of ``num_nodes`` nodes.

        topology = parse_topology({"nodes": "hgx-h100", "fabric": {"kind": "switch"}}, num_nodes=2)

    The description is a name of the catalogue, or a mapping with ``nodes`` (a name, a layout, or a list of groups
    ``{count, type}``), ``fabric``, ``stragglers``, and ``base``, a name of the catalogue whose keys it overrides.

    Raises TopologyError with key, rule and remedy.
    """
    if isinstance(description, str):
        description = load_topology(description, "")
    _refuse_misplaced(description)
    description = based_on(description, "", load_topology)
    section = Section.of(description, "", TOPOLOGY_KEYS, or_base="superpod-h100")
    groups = _groups(section, num_nodes)
    num_devices = sum(island.num_devices * count for island, count in groups)
    if num_devices > MOST:
        rule = f"{num_devices:,} devices are more than {MOST:,}"
        raise TopologyError("nodes", rule, "write fewer nodes")
    topology = build(groups, fabric_of(section.entries["fabric"]) if "fabric" in section else None)
    return _with_stragglers(topology, section)


def _refuse_misplaced(description: object) -> None:
    """Raise TopologyError for a key of nodes or of the network at the wrong level."""
    for key in description if isinstance(description, Mapping) else ():
        for section, known in (("nodes", NODE_KEYS), ("fabric", fabric_keys())):
            if key in known and key not in TOPOLOGY_KEYS:
                raise TopologyError(str(key), f"{key} is a key of {section}", f"write {section}: {{{key}: ...}}")


def _groups(section: Section, num_nodes: int) -> list[tuple[Island, int]]:
    """Return the types of islands, and the number of islands of each."""
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
    """Return the node layouts of a description that ``parse_topology`` accepts, in order: name and number of nodes.

    The name is that of the catalogue's layout, or of the layout that the node's ``base`` names; empty for a node
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
    section = Section.of(description, where, NODE_KEYS, or_base="hgx-h100")
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
            rule = f"{quoted(row)} is not two devices and the number of links between them"
            raise TopologyError(section.key("nvlinks"), rule, "write [[0, 1, 2], ...]")
    return tuple((row[0], row[1], row[2]) for row in rows)


def _with_stragglers(topology: Topology, section: Section) -> Topology:
    """Return the topology with each straggler of the list, one after the other."""
    entries = section.entries.get("stragglers", [])
    if not isinstance(entries, list):
        raise TopologyError("stragglers", "a list belongs here", "write [{device: 17, slowdown: 1.3}]")
    devices: dict[int, float] = {}
    links: dict[str, float] = {}
    for index, entry in enumerate(entries):
        one = Section.of(entry, f"stragglers[{index}]", ("device", "link", "slowdown"))
        slowdown = one.factor("slowdown")
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
