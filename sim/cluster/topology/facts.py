"""Summary of a cluster's topology: links by kind, bisection bandwidth, longest route."""

from itertools import pairwise

import numpy as np
from msgspec import Struct

from sim.cluster.topology.links import NONE, FloatArray, IntArray, LinkKind
from sim.cluster.topology.max_flow import max_flow
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.topology import Topology
from sim.sorting import distinct_values

_ROUTES_AT_ONCE = 16_384
ALL_PAIRS_UP_TO = 256
"""Devices up to which the longest route is exact; beyond, routes from a few islands across the cluster are tried."""


class LinkFacts(Struct, frozen=True, kw_only=True):
    """Equal directed links: their number and their properties."""

    kind: LinkKind
    count: int
    bandwidth_bytes_per_s: float
    latency_s: float
    message_s: float


class TopologyFacts(Struct, frozen=True, kw_only=True):
    """The summary of a topology.

    ``bisection_bytes_per_s``: from one half of the cluster to the other.
    ``max_hops``: links of the longest route.
    ``in_network_reduction``: whether the network's switches reduce and multicast.
    """

    num_devices: int
    num_nodes: int
    num_islands: int
    num_ports: int
    num_switches: int
    in_network_reduction: bool
    links: tuple[LinkFacts, ...]
    bisection_bytes_per_s: float
    max_hops: int
    slowed_devices: tuple[int, ...]


def describe(topology: Topology) -> TopologyFacts:
    """Return the summary of a topology."""
    fabric = topology.fabric
    return TopologyFacts(
        num_devices=topology.num_devices,
        num_nodes=topology.num_nodes,
        num_islands=topology.num_islands,
        num_ports=len(topology.ports),
        num_switches=fabric.num_switches if fabric and not fabric.direct else 0,
        in_network_reduction=fabric is not None and fabric.reduces,
        links=_link_facts(topology),
        bisection_bytes_per_s=bisection_bytes_per_s(topology),
        max_hops=max_hops(topology),
        slowed_devices=tuple(np.flatnonzero(topology.device_slowdown != 1).tolist()),
    )


def bisection_bytes_per_s(topology: Topology) -> float:
    """Return the bisection bandwidth: the rate from one half of the devices to the other, in one direction.

    The halves are the first half of the nodes (or domains; for an odd number the smaller half) and the others; in a
    torus the two sides of the cheapest cut; in a single island the first half of its devices and the others. Only links
    on routes count. Stragglers among the links of the network are ignored.
    """
    if topology.fabric is None:
        return _inside_bisection(topology)
    return topology.fabric.bisection_bytes_per_s(port_capacities(topology))


def port_capacities(topology: Topology) -> FloatArray:
    """Return the bytes/s of each port, limited by the rate at which its island can feed all its ports together."""
    share = np.ones(len(topology.islands))
    for index, island in enumerate(topology.islands):
        if island.nic is not None:
            whole = island.num_ports * island.nic.bandwidth_bytes_per_s
            share[index] = min(1.0, export_bytes_per_s(island) / whole)
    factor: FloatArray = share[topology.placement.layout[topology.ports.island]]
    return topology.ports.bandwidth_bytes_per_s * factor


def export_bytes_per_s(island: Island) -> float:
    """Return the largest rate from all devices of an island to the network."""
    if island.nic is None:
        return float("inf")
    speed = island.nic.bandwidth_bytes_per_s
    ports = dict.fromkeys(island.port_vertices.tolist(), speed)
    return max_flow(_used(island, island.out_paths), dict.fromkeys(range(island.num_devices), float("inf")), ports)


def max_hops(topology: Topology) -> int:
    """Return the number of links on the longest route.

    Exact up to 256 devices; beyond, the longest route from the devices of four islands across the cluster.
    """
    everyone = np.arange(topology.num_devices)
    starts = everyone
    if topology.num_devices > ALL_PAIRS_UP_TO:
        last = topology.num_islands - 1
        first = topology.placement.first_device
        islands = sorted({last * part // 3 for part in range(4)})
        chosen = [(island, topology.islands[topology.placement.layout[island]]) for island in islands]
        starts = np.array([first[island] + device for island, layout in chosen for device in _remote_devices(layout)])
    longest = 0
    for targets in np.array_split(everyone, -(-len(everyone) // _ROUTES_AT_ONCE)):
        for start in starts.tolist():
            routes = topology.routes(np.full_like(targets, start), targets)
            longest = max(longest, int(routes.num_hops.max()))
    return longest


def _remote_devices(island: Island) -> set[int]:
    """Return the first two devices of an island, and one device farthest from its nearest port."""
    found = {0, min(1, island.num_devices - 1)}
    if island.num_ports:
        near = island.out_paths[np.arange(island.num_devices), island.nearest_port]
        found.add(int(np.argmax((near != NONE).sum(axis=1))))
    return found


def _inside_bisection(topology: Topology) -> float:
    [island] = topology.islands
    middle, infinite = island.num_devices // 2, float("inf")
    first, second = range(middle), range(middle, island.num_devices)
    links = _used(island, island.device_paths)
    return max_flow(links, dict.fromkeys(first, infinite), dict.fromkeys(second, infinite))


def _used(island: Island, paths: IntArray) -> list[tuple[int, int, float]]:
    """Return the links on some paths, as (from, to, bytes/s)."""
    used = distinct_values(paths[paths != NONE])
    columns = (island.links.source, island.links.target, island.links.bandwidth_bytes_per_s)
    return list(zip(*(column[used].tolist() for column in columns), strict=True))


def _link_facts(topology: Topology) -> tuple[LinkFacts, ...]:
    """Return groups of equal links, kind by kind, the widest first; a single device has none."""
    links = topology.links
    if not len(links.kind):
        return ()
    facts = np.stack([links.kind, -links.bandwidth_bytes_per_s, links.latency_s, links.message_s])
    order = np.lexsort(facts[::-1])
    changes = np.flatnonzero((np.diff(facts[:, order], axis=1) != 0).any(axis=0)) + 1
    found = []
    for start, end in pairwise((0, *changes.tolist(), len(order))):
        kind, minus, latency_s, message_s = facts[:, order[start]].tolist()
        found.append(
            LinkFacts(
                kind=LinkKind(int(kind)),
                count=end - start,
                bandwidth_bytes_per_s=-minus,
                latency_s=latency_s,
                message_s=message_s,
            )
        )
    return tuple(found)
