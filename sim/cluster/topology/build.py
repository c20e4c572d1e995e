"""Build a topology from islands and a network."""

from collections.abc import Callable, Sequence

import numpy as np

from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.fabrics.fabric import Fabric, Ports
from sim.cluster.topology.links import (
    AnyInts,
    FloatArray,
    IntArray,
    LinkKind,
    LinkTable,
    joined,
)
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.topology import Placement, Topology

FabricOf = Callable[[Ports, bool], Fabric]
"""A function from ports to the network that joins them; the second argument: the ports are devices themselves."""


def build(groups: Sequence[tuple[Island, int]], fabric_of: FabricOf | None) -> Topology:
    """Return the cluster of some islands of each type, in this order, joined by a network.

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
    return Topology(
        islands=islands,
        placement=placement,
        ports=ports,
        fabric=fabric,
        links=_links(islands, placement, ports, fabric, num_devices + others),
        device_island=_owners([island.num_devices for island in islands], layout),
        device_slowdown=np.ones(num_devices),
        num_vertices=num_devices + others + switches,
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
    islands: Sequence[Island], placement: Placement, ports: Ports, fabric: Fabric | None, first_switch: int
) -> LinkTable:
    """Return all links: inside islands, from ports into the network, from the network to ports, inside the network."""
    tables = []
    for index, island in enumerate(islands):
        chosen = np.flatnonzero(placement.layout == index)
        ends = (_global(end, island, placement, chosen) for end in (island.links.source, island.links.target))
        tables.append(island.links.moved(*ends))
    if fabric is None:
        return joined(tables)
    if not fabric.direct:
        tables.append(_port_links(islands, placement, ports, fabric.attach + first_switch))
    base = 0 if fabric.direct else first_switch
    tables.append(fabric.links.moved(fabric.links.source + base, fabric.links.target + base))
    return joined(tables)


def _global(local: IntArray, island: Island, placement: Placement, chosen: AnyInts) -> AnyInts:
    """Return the cluster's vertex numbers for the local numbers of one type of island, for each such island in turn."""
    devices = placement.first_device[chosen][:, None]
    others = placement.first_vertex[chosen][:, None] - island.num_devices
    return np.where(local < island.num_devices, local + devices, local + others).ravel()


def _port_links(islands: Sequence[Island], placement: Placement, ports: Ports, switches: IntArray) -> LinkTable:
    """Return the links from every port to its switch, then those back."""
    vertices = np.zeros(len(ports), np.int64)
    facts: list[FloatArray] = [np.zeros(len(ports)) for _ in range(3)]
    for index, island in enumerate(islands):
        if island.nic is None:
            continue
        chosen = np.flatnonzero(placement.layout == index)
        rows = (placement.first_port[chosen][:, None] + np.arange(island.num_ports)).ravel()
        vertices[rows] = _global(island.port_vertices, island, placement, chosen)
        cable = (island.nic.bandwidth_bytes_per_s, island.nic.latency_s, island.nic.message_s)
        for column, value in zip(facts, cable, strict=True):
            column[rows] = value
    ends = np.concatenate([vertices, switches]), np.concatenate([switches, vertices])
    source, target = (end.astype(np.int32) for end in ends)
    kind = np.full(len(source), LinkKind.NIC, np.int8)
    return LinkTable(source, target, kind, *(np.tile(column, 2) for column in facts))
