"""A cluster as a graph of directed links, with one route for every pair of devices."""

import difflib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from sim.cluster.topology.errors import TopologyError, quoted
from sim.cluster.topology.fabrics.fabric import Fabric, Ports
from sim.cluster.topology.links import (
    NONE,
    AnyInts,
    Cable,
    FloatArray,
    IntArray,
    LinkKind,
    LinkTable,
    joined,
    num_hops,
    one_way,
)
from sim.cluster.topology.nodes.island import Island

Rows = npt.NDArray[np.int64] | slice

_OF_HOSTS: Final = {LinkKind.MEMORY: ("memory", "host"), LinkKind.DRIVES: ("drives", "host")}
"""The ends of a host's own link."""


class Routes(Struct, frozen=True):
    """The links of many routes: route i has the links ``links[indptr[i]:indptr[i + 1]]``, in this order."""

    indptr: npt.NDArray[np.int64]
    links: IntArray

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, index: int) -> IntArray:
        """Return the links of one route."""
        return self.links[self.indptr[index] : self.indptr[index + 1]]

    @property
    def num_hops(self) -> npt.NDArray[np.int64]:
        """Return the number of links of each route; 0 from a device to itself."""
        return np.diff(self.indptr)


class Placement(Struct, frozen=True, kw_only=True):
    """The position of every island in the numbering, one row per island; ``layout`` is the type of island."""

    layout: IntArray
    first_device: IntArray
    first_node: IntArray
    first_port: IntArray
    first_link: IntArray
    first_vertex: IntArray
    """First vertex of the island that is no device."""


class Topology(Struct, frozen=True, kw_only=True):
    """Devices, the links between them, and routes.

    Vertices 0 to ``num_devices`` - 1 are the devices; then come the islands' other vertices, then the network's
    switches. Link columns have one row per directed link. Arrays must not be written. Bandwidth: bytes/s in that
    direction.
    ``message_s``: time of a message on the link in addition to its bytes.
    ``device_slowdown``: a factor on each device's times.
    ``host_links``: kinds of links that every node's host has of its own, in the order in which they have been added
    (``with_host_links``). Their vertices and links are the last ones.
    """

    islands: tuple[Island, ...]
    placement: Placement
    ports: Ports
    fabric: Fabric | None
    links: LinkTable
    device_island: IntArray
    device_slowdown: FloatArray
    num_vertices: int
    host_links: tuple[LinkKind, ...] = ()

    @property
    def num_devices(self) -> int:
        """Return the number of devices."""
        return len(self.device_island)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes (hosts)."""
        return self.ports.num_nodes

    @property
    def num_islands(self) -> int:
        """Return the number of islands: nodes, or domains of nodes, that are joined inside without the network."""
        return len(self.placement.layout)

    @property
    def num_links(self) -> int:
        """Return the number of directed links."""
        return len(self.links)

    @property
    def source(self) -> IntArray:
        """Return the vertex at the beginning of each link."""
        return self.links.source

    @property
    def target(self) -> IntArray:
        """Return the vertex at the end of each link."""
        return self.links.target

    @property
    def kind(self) -> npt.NDArray[np.int8]:
        """Return the kind of each link: a LinkKind."""
        return self.links.kind

    @property
    def bandwidth_bytes_per_s(self) -> FloatArray:
        """Return the bandwidth of each link in bytes/s."""
        return self.links.bandwidth_bytes_per_s

    @property
    def latency_s(self) -> FloatArray:
        """Return the time of a message without bytes on each link, in seconds."""
        return self.links.latency_s

    @property
    def message_s(self) -> FloatArray:
        """Return the time for which each message occupies each link, in addition to its bytes, in seconds."""
        return self.links.message_s

    @property
    def island_of_vertex(self) -> IntArray:
        """Return the island of each vertex, -1 for the network's switches."""
        layouts = self.placement.layout.tolist()
        others = [self.islands[layout].num_vertices - self.islands[layout].num_devices for layout in layouts]
        switches = self.num_vertices - self.num_devices - sum(others)
        return np.concatenate(
            [self.device_island, np.repeat(np.arange(len(others)), others), np.full(switches, NONE)], dtype=np.int32
        )  # fmt: skip

    def reverse_of(self, links: AnyInts) -> AnyInts:
        """Return the links of the opposite direction; every link has one, and no two links join the same ends."""
        source, target = self.source.astype(np.int64), self.target.astype(np.int64)
        there, back = source * self.num_vertices + target, target[links] * self.num_vertices + source[links]
        order = np.argsort(there)
        found: AnyInts = order[np.searchsorted(there, back, sorter=order)]
        return found

    def node_of(self, devices: AnyInts) -> IntArray:
        """Return the nodes of devices."""
        island = self.device_island[devices]
        local = devices - self.placement.first_device[island]
        found = np.empty(len(island), np.int32)
        for layout, rows in self._by_layout(island):
            found[rows] = self.islands[layout].node_of_device[local[rows]] + self.placement.first_node[island[rows]]
        return found

    def routes(self, sources: AnyInts, targets: AnyInts) -> Routes:
        """Return the route from each source device to the target device of the same index.

        A route never depends on the other routes asked for. Raises TopologyError for a device that does not exist, and
        for arrays of unequal length.
        """
        matrix = self.hops(sources, targets)
        return Routes(np.append(0, np.cumsum(num_hops(matrix))), matrix[matrix != NONE])

    def hops(self, sources: AnyInts, targets: AnyInts) -> IntArray:
        """Return the links of ``routes`` as a row for each route, with -1 between and around the links."""
        sources, targets = np.asarray(sources), np.asarray(targets)
        self._check_devices(sources, targets)
        return self._hops(sources.astype(np.int32, copy=False), targets.astype(np.int32, copy=False))

    def _hops(self, sources: IntArray, targets: IntArray) -> IntArray:
        near = self.device_island[sources] == self.device_island[targets]
        if self.fabric is None or near.all():
            return self._inside(sources, targets)
        if not near.any():
            return self._between(sources, targets, self.fabric)
        inside = self._inside(sources[near], targets[near])
        between = self._between(sources[~near], targets[~near], self.fabric)
        found = np.full((len(sources), max(inside.shape[1], between.shape[1])), NONE, np.int32)
        found[near, : inside.shape[1]], found[~near, : between.shape[1]] = inside, between
        return found

    def host_routes(self, devices: AnyInts, *, to_host: bool) -> Routes:
        """Return the route from each device to its socket, or back; empty routes where the layout has no sockets."""
        island = self.device_island[devices]
        local = devices - self.placement.first_device[island]
        width = max(island.host_paths.shape[1] for island in self.islands)
        found = np.full((len(devices), width), NONE, np.int32)
        for layout, rows in self._by_layout(island):
            table = self.islands[layout].host_paths
            table = table if to_host else np.where(table == NONE, NONE, table ^ 1)[:, ::-1]
            first_link = self.placement.first_link[island[rows]]
            found[rows, : table.shape[1]] = _moved(table[local[rows]], first_link[:, None])
        present = found != NONE
        return Routes(np.append(0, np.cumsum(present.sum(axis=1))), found[present])

    def with_host_links(self, kind: LinkKind, cable: Cable) -> "Topology":
        """Return the same cluster with one more link in every host: to its memory, or to its drives.

        Reading and writing share the link.
        """
        own = links_of_hosts({kind: cable}, self.num_vertices, self.num_nodes)
        return replace(
            self,
            links=joined([self.links, *own]),
            num_vertices=self.num_vertices + self.num_nodes * len(own),
            host_links=(*self.host_links, kind),
        )

    def host_link(self, kind: LinkKind, devices: AnyInts) -> AnyInts:
        """Return the link of this kind in the host of each device; all hosts have one."""
        after = len(self.host_links) - self.host_links.index(kind)
        found: AnyInts = self.num_links - 2 * self.num_nodes * after + self.node_of(devices)
        return found

    def _check_devices(self, sources: AnyInts, targets: AnyInts) -> None:
        if sources.shape != targets.shape or sources.ndim != 1:
            rule = f"{sources.shape} sources, {targets.shape} targets"
            raise TopologyError("", rule, "give two lists of equal length")
        both = np.concatenate([sources, targets])
        outside = both[(both < 0) | (both >= self.num_devices)]
        if len(outside):
            rule = f"there is no device {outside[0]}"
            raise TopologyError("", rule, f"devices are 0 to {self.num_devices - 1}")

    def _inside(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the links between devices of one island."""
        island = self.device_island[sources]
        base = self.placement.first_device[island]
        source, target = sources - base, targets - base
        return self._of_islands(island, lambda shape, rows: shape.device_paths[source[rows], target[rows]])

    def _between(self, sources: IntArray, targets: IntArray, fabric: Fabric) -> IntArray:
        """Return the links between devices of different islands: out of the one, across the network, into the other."""
        exits, entries = self._choose_ports(sources, targets, fabric)
        parts = [self._to_port(sources, exits), self._across(exits, entries, fabric), self._from_port(entries, targets)]
        return np.concatenate(parts, axis=1)

    def _choose_ports(self, sources: IntArray, targets: IntArray, fabric: Fabric) -> tuple[IntArray, IntArray]:
        """Return the ports by which traffic leaves and enters: the nearest ones.

        If the network keeps rails, traffic leaves by its own node's port on the target's rail.
        """
        exits, entries = self._nearest_ports(sources), self._nearest_ports(targets)
        if fabric.keeps_rails:
            exits = exits - self.ports.rail[exits] + self.ports.rail[entries]
        return exits, entries

    def _nearest_ports(self, devices: IntArray) -> IntArray:
        island = self.device_island[devices]
        local = devices - self.placement.first_device[island]
        found = np.empty(len(devices), np.int32)
        for layout, rows in self._by_layout(island):
            found[rows] = self.islands[layout].nearest_port[local[rows]] + self.placement.first_port[island[rows]]
        return found

    def _to_port(self, devices: IntArray, ports: IntArray) -> IntArray:
        return self._port_paths(devices, ports, outward=True)

    def _from_port(self, ports: IntArray, devices: IntArray) -> IntArray:
        return self._port_paths(devices, ports, outward=False)

    def _port_paths(self, devices: IntArray, ports: IntArray, *, outward: bool) -> IntArray:
        """Return the links between devices and ports of their islands."""
        island = self.device_island[devices]
        device = devices - self.placement.first_device[island]
        port = ports - self.placement.first_port[island]

        def links(shape: Island, rows: Rows) -> IntArray:
            out, into = shape.out_paths, shape.in_paths
            found: IntArray = out[device[rows], port[rows]] if outward else into[port[rows], device[rows]]
            return found

        return self._of_islands(island, links)

    def _across(self, exits: IntArray, entries: IntArray, fabric: Fabric) -> IntArray:
        """Return the links from port to port."""
        between = _moved(fabric.routes(exits, entries), np.int32(self._first_fabric_link))
        if fabric.direct:
            return between
        out, into = self.first_port_link + exits, self.first_port_link + len(self.ports) + entries
        return np.concatenate([out[:, None], between, into[:, None]], axis=1).astype(np.int32, copy=False)

    def _of_islands(self, island: IntArray, links: Callable[[Island, Rows], IntArray]) -> IntArray:
        """Return the links that each route has inside its island; ``links``: those of some routes, in one type."""
        parts = [(rows, links(self.islands[layout], rows)) for layout, rows in self._by_layout(island)]
        local = parts[0][1]
        if len(parts) > 1:
            local = np.full((len(island), max(part.shape[1] for _, part in parts)), NONE, np.int32)
            for rows, part in parts:
                local[rows, : part.shape[1]] = part
        return _moved(local, self.placement.first_link[island][:, None])

    def _by_layout(self, island: IntArray) -> list[tuple[int, Rows]]:
        """Return, by type of island, the rows on islands of that type."""
        if len(self.islands) == 1:
            return [(0, slice(None))]
        layout = self.placement.layout[island]
        return [(index, np.flatnonzero(layout == index)) for index in range(len(self.islands))]

    @property
    def first_port_link(self) -> int:
        """Return the number of the first link out of a port; then come those into ports, and the network's."""
        return self._first_fabric_link - (0 if self.fabric is None or self.fabric.direct else 2 * len(self.ports))

    @property
    def _first_fabric_link(self) -> int:
        return self.num_links - self._num_of_hosts - (len(self.fabric.links) if self.fabric else 0)

    @property
    def first_switch(self) -> int:
        """Return the vertex number of the network's first switch; of a direct network, of the first device."""
        if self.fabric is None:
            return self.num_vertices
        return 0 if self.fabric.direct else self._first_of_hosts - self.fabric.num_switches

    @property
    def _num_of_hosts(self) -> int:
        """Return the number of links of hosts' own, and of their ends."""
        return 2 * self.num_nodes * len(self.host_links)

    @property
    def _first_of_hosts(self) -> int:
        return self.num_vertices - self._num_of_hosts

    def vertex_name(self, vertex: int) -> str:
        """Return the name of a vertex: ``node 3 gpu 1``, ``leaf 0``."""
        if vertex >= self._first_of_hosts:
            place, end = divmod(vertex - self._first_of_hosts, 2)
            kind, node = divmod(place, self.num_nodes)
            return f"node {node} {_OF_HOSTS[self.host_links[kind]][end]}"
        if self.fabric is not None and not self.fabric.direct and vertex >= self.first_switch:
            return self.fabric.switch_name(vertex - self.first_switch)
        if vertex < self.num_devices:
            island = int(self.device_island[vertex])
            local = vertex - int(self.placement.first_device[island])
        else:
            island = bisect_right(self.placement.first_vertex.tolist(), vertex) - 1
            shape = self.islands[self.placement.layout[island]]
            local = vertex - int(self.placement.first_vertex[island]) + shape.num_devices
        shape = self.islands[self.placement.layout[island]]
        node = shape.vertex_nodes[local]
        prefix = f"domain {island}" if node == NONE else f"node {node + int(self.placement.first_node[island])}"
        return f"{prefix} {shape.vertex_names[local]}"

    def vertex_names(self) -> list[str]:
        """Return the names of all vertices."""
        names: list[str] = []
        others: list[str] = []
        for island, layout in enumerate(self.placement.layout.tolist()):
            shape, first = self.islands[layout], int(self.placement.first_node[island])
            prefixes = [f"domain {island}" if node == NONE else f"node {first + node}" for node in shape.vertex_nodes]
            full = [f"{prefix} {name}" for prefix, name in zip(prefixes, shape.vertex_names, strict=True)]
            names += full[: shape.num_devices]
            others += full[shape.num_devices :]
        if self.fabric is not None and not self.fabric.direct:
            others += [self.fabric.switch_name(switch) for switch in range(self.fabric.num_switches)]
        return [*names, *others, *map(self.vertex_name, range(self._first_of_hosts, self.num_vertices))]

    def name_of(self, link: int) -> str:
        """Return a link's name: ``node 3 nic 0 out``, ``node 3 gpu 0 to gpu 3``, ``leaf 0 to spine 1``."""
        return self._link_name(link, self.vertex_name(int(self.source[link])), self.vertex_name(int(self.target[link])))

    def _link_name(self, link: int, source: str, target: str) -> str:
        port = link - self.first_port_link
        if 0 <= port < len(self.ports) and not (self.fabric is None or self.fabric.direct):
            return f"{source} out"
        if len(self.ports) <= port < 2 * len(self.ports) and not (self.fabric is None or self.fabric.direct):
            return f"{target} in"
        words = source.split()
        shared = " ".join(words[:2]) + " " if words[0] in {"node", "domain"} else " "
        return f"{source} to {target.removeprefix(shared)}"

    def link_named(self, name: str) -> int:
        """Return the link of a name. Raises TopologyError with the nearest names if there is none."""
        vertices = self.vertex_names()
        ends = zip(self.source.tolist(), self.target.tolist(), strict=True)
        names = {self._link_name(link, vertices[s], vertices[t]): link for link, (s, t) in enumerate(ends)}
        if name in names:
            return names[name]
        alike = [other for other in names if other.split()[:2] == name.split()[:2]] or list(names)
        close = difflib.get_close_matches(name, alike[:2000], n=3, cutoff=0.3) or list(names)[:3]
        raise TopologyError(
            "link", f"there is no link {quoted(name)}", f"did you mean {' or '.join(map(repr, close))}?"
        )

    def slowed(
        self, devices: Mapping[int, float] | None = None, links: Mapping[str, float] | None = None
    ) -> "Topology":
        """Return the same cluster with stragglers: devices by number, links by name, each with its slowdown.

        A link that is f times slower has 1/f of the bandwidth, f times the latency and the occupancy per message.
        Raises TopologyError for a device or link that does not exist, and for a slowdown below 1.
        """
        slowdown, factor = self.device_slowdown.copy(), np.ones(self.num_links)
        for device, times in (devices or {}).items():
            if not 0 <= device < self.num_devices:
                rule = f"there is no device {device}"
                raise TopologyError("device", rule, f"devices are 0 to {self.num_devices - 1}")
            slowdown[device] *= _slowdown(times)
        for name, times in (links or {}).items():
            factor[self.link_named(name)] *= _slowdown(times)
        table = replace(
            self.links,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / factor,
            latency_s=self.latency_s * factor,
            message_s=self.message_s * factor,
        )
        return replace(self, links=table, device_slowdown=slowdown)

    def kinds(self) -> Sequence[LinkKind]:
        """Return the kinds of links in the cluster."""
        return [LinkKind(kind) for kind in np.flatnonzero(np.bincount(self.kind)).tolist()]


def links_of_hosts(cables: Mapping[LinkKind, Cable], first_vertex: int, num_nodes: int) -> list[LinkTable]:
    """Return the links of every node's host, of each kind there and back, between two vertices of their own."""
    found = []
    for number, (kind, cable) in enumerate(cables.items()):
        ends = first_vertex + 2 * num_nodes * number + 2 * np.arange(num_nodes)
        found += [one_way(ends, ends + 1, kind, cable), one_way(ends + 1, ends, kind, cable)]
    return found


def _moved(links: IntArray, first: IntArray | np.int32) -> IntArray:
    """Return local link numbers [rows, links] as numbers of the whole cluster; -1 stays."""
    moved = links + first
    np.copyto(moved, NONE, where=links == NONE)
    return moved


def _slowdown(times: float) -> float:
    if not 1 <= times < float("inf"):
        raise TopologyError("slowdown", f"a slowdown is 1 or more, not {times}", "write how many times as long, as 1.3")
    return times
