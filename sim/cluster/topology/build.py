"""Build a topology from islands and a network."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.fabrics.fabric import Fabric, Ports
from sim.cluster.topology.links import (
    AnyInts,
    Cable,
    IntArray,
    LinkKind,
    MovedLinks,
    joined,
    one_way,
)
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.topology import Placement, Topology, links_of_hosts

FabricOf = Callable[[Ports, bool], Fabric]
"""A function from ports to the network that joins them; the second argument: the ports are devices themselves."""


def build(
    groups: Sequence[tuple[Island, int]], fabric_of: FabricOf | None, hosts: Mapping[LinkKind, Cable] | None = None
) -> Topology:
    """Return the cluster of some islands of each type, in this order, joined by a network.

    ``hosts``: links of every node's host, as of ``Topology.with_host_links``.

    Raises TopologyError for several islands without a network, and for islands without a port into it.
    """
    islands = tuple(island for island, _ in groups)
    layout = np.repeat(np.arange(len(islands), dtype=np.int32), [count for _, count in groups])
    placement = _place(islands, layout)
    ports = _ports(groups, placement)
    fabric = None
    if len(layout) > 1:
        fabric = _join(islands, ports, fabric_of)
    num_devices = sum(island.num_devices * count for island, count in groups)
    others = sum((island.num_vertices - island.num_devices) * count for island, count in groups)
    switches = 0 if fabric is None or fabric.direct else fabric.num_switches
    num_vertices = num_devices + others + switches
    of_hosts = links_of_hosts(hosts or {}, num_vertices, ports.num_nodes)
    return Topology(
        islands=islands,
        placement=placement,
        ports=ports,
        fabric=fabric,
        links=joined([*_links(islands, placement, fabric, num_devices + others), *of_hosts]),
        device_island=_owners([island.num_devices for island in islands], layout),
        device_slowdown=np.ones(num_devices),
        num_vertices=num_vertices + ports.num_nodes * len(of_hosts),
        host_links=tuple(hosts or ()),
    )


def _place(islands: Sequence[Island], layout: IntArray) -> Placement:
    def first(size_of: Callable[[Island], int], start: int = 0) -> IntArray:
        sizes = np.array([size_of(island) for island in islands])[layout]
        before: IntArray = (start + np.cumsum(sizes) - sizes).astype(np.int32)
        return before

    num_devices = int(np.array([island.num_devices for island in islands])[layout].sum())
    return Placement(
        layout=layout,
        first_device=first(lambda island: island.num_devices),
        first_node=first(lambda island: island.num_nodes),
        first_port=first(lambda island: island.num_ports),
        first_link=first(lambda island: len(island.links)),
        first_vertex=first(lambda island: island.num_vertices - island.num_devices, num_devices),
    )


def _ports(groups: Sequence[tuple[Island, int]], placement: Placement) -> Ports:
    """Return all ports into the network, island by island."""
    node, rail, bandwidth = [], [], []
    for island, count in groups:
        local = island.node_of_port
        per_node = max(1, island.num_ports // island.num_nodes)
        node.append(np.tile(local, count))
        rail.append(np.tile(np.arange(len(local), dtype=np.int32) % per_node, count))
        speed = island.nic.bandwidth_bytes_per_s if island.nic else np.inf
        bandwidth.append(np.full(len(local) * count, speed))
    owner = _owners([len(island.node_of_port) for island, _ in groups], placement.layout)
    return Ports(
        island=owner,
        node=np.concatenate(node) + placement.first_node[owner],
        rail=np.concatenate(rail),
        bandwidth_bytes_per_s=np.concatenate(bandwidth),
        num_nodes=sum(island.num_nodes * count for island, count in groups),
    )


def _owners(num_of_types: Sequence[int], layout: IntArray) -> IntArray:
    """Return the island of each of the devices, or ports, of which an island of each type has so many."""
    return np.repeat(np.arange(len(layout), dtype=np.int32), np.array(num_of_types)[layout])


def _join(islands: Sequence[Island], ports: Ports, fabric_of: FabricOf | None) -> Fabric:
    if fabric_of is None:
        raise TopologyError("fabric", "several nodes need a network between them", "write fabric: {kind: switch}")
    for island in islands:
        if not island.num_ports:
            rule = f"node {island.name} has no way to the network"
            raise TopologyError("nodes.nics", rule, "write nics: 1 or more")
    direct = {island.nic is None for island in islands}
    if len(direct) > 1:
        raise TopologyError("nodes.nics", "some nodes have adapters and some have none", "give all nodes adapters")
    return fabric_of(ports, direct.pop())


def _links(
    islands: Sequence[Island], placement: Placement, fabric: Fabric | None, first_switch: int
) -> list[MovedLinks]:
    """Return all links: inside islands, from ports into the network, from the network to ports, inside the network."""
    parts = []
    for index, island in enumerate(islands):
        ends = (_global(end, island, placement, index) for end in (island.links.source, island.links.target))
        parts.append(island.links.moved(*ends))
    if fabric is None:
        return parts
    if not fabric.direct:
        parts += _port_links(islands, placement, fabric.attach + first_switch)
    base = 0 if fabric.direct else first_switch
    return [*parts, fabric.links.moved(fabric.links.source + base, fabric.links.target + base)]


def _global(local: IntArray, island: Island, placement: Placement, index: int) -> AnyInts:
    """Return the cluster's vertex numbers for the local numbers of one type of island, for each such island in turn."""
    chosen, is_other = placement.layout == index, (local >= island.num_devices).astype(np.int64)
    first = np.stack([placement.first_device, placement.first_vertex - island.num_devices], axis=1)[chosen]
    vertices: AnyInts = (first[:, is_other] + local).ravel()
    return vertices


def _port_links(islands: Sequence[Island], placement: Placement, switches: IntArray) -> list[MovedLinks]:
    """Return the links from every port to its switch, then those back."""
    out, into = list[MovedLinks](), list[MovedLinks]()
    for index, island in enumerate(islands):
        if island.nic is not None:
            vertices = _global(island.port_vertices, island, placement, index)
            own, switches = switches[: len(vertices)], switches[len(vertices) :]
            link = one_way(vertices[:1], own[:1], LinkKind.NIC, island.nic)
            out.append(link.moved(vertices, own))
            into.append(link.moved(own, vertices))
    return [*out, *into]
