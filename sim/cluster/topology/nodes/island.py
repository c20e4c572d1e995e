"""An island: devices that reach each other without the network, and their paths to the network adapters.

An island is one node, or several nodes in one NVSwitch domain. It is a small graph, built once per node type and used
for every island of that type. Its routes are tables, so routes of any number of pairs are look-ups.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field

from sim.cluster.topology.links import NONE, Cable, IntArray, LinkKind, LinkTable

Path = list[int]
"""Links in path order."""


class Island(Struct, frozen=True, kw_only=True):
    """A small graph with its routes. Vertices 0 to ``num_devices`` - 1 are devices; links are numbered from 0.

    ``port_vertices``: the network adapters. ``device_paths`` [devices, devices, longest], ``out_paths`` [devices,
        ports, longest] and ``in_paths`` [ports, devices, longest]: links, padded with -1.
    ``host_paths`` [devices, longest]: links to the sockets, padded with -1, if the layout has sockets.

    An island of one device without adapter is its own port, and has no ``nic``.
    """

    name: str
    num_nodes: int
    num_devices: int
    vertex_names: tuple[str, ...]
    vertex_nodes: tuple[int, ...]
    links: LinkTable
    port_vertices: IntArray
    nic: Cable | None
    node_of_device: IntArray
    node_of_port: IntArray
    nearest_port: IntArray
    device_paths: IntArray
    out_paths: IntArray
    in_paths: IntArray
    host_paths: IntArray

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices."""
        return len(self.vertex_names)

    @property
    def num_ports(self) -> int:
        """Return the number of ports into the network."""
        return len(self.port_vertices)


class Drawing(Struct):
    """A graph under construction. Every cable is two links; the backward link has the next number."""

    names: list[str] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    cables: list[tuple[int, int, LinkKind, Cable]] = field(default_factory=list)

    def vertex(self, name: str, node: int = NONE) -> int:
        """Add a vertex of a node (-1: of the whole island) and return its number."""
        self.names.append(name)
        self.nodes.append(node)
        return len(self.names) - 1

    def connect(self, first: int, second: int, kind: LinkKind, cable: Cable) -> int:
        """Add a cable and return the number of its link from the first vertex to the second."""
        self.cables.append((first, second, kind, cable))
        return 2 * len(self.cables) - 2

    def links(self) -> LinkTable:
        """Return all links so far."""
        first, second = numbers(cable[0] for cable in self.cables), numbers(cable[1] for cable in self.cables)
        cables = [cable for *_, cable in self.cables]
        rates = (
            [cable.bandwidth_bytes_per_s for cable in cables],
            [cable.latency_s for cable in cables],
            [cable.message_s for cable in cables],
        )
        return LinkTable(
            np.stack([first, second], axis=1).ravel(),
            np.stack([second, first], axis=1).ravel(),
            np.repeat(np.array([kind for _, _, kind, _ in self.cables], np.int8), 2),
            *(np.repeat(np.array(column, np.float64), 2) for column in rates),
        )


def back(path: Path) -> Path:
    """Return the reverse path over the same cables."""
    return [link ^ 1 for link in reversed(path)]


def path_table(paths: Sequence[Sequence[Path]]) -> IntArray:
    """Return paths as one array [rows, columns, longest], padded with -1."""
    longest = max((len(path) for row in paths for path in row), default=0)
    columns = len(paths[0]) if paths else 0
    filled = [link for row in paths for path in row for link in (*path, *[NONE] * (longest - len(path)))]
    return np.array(filled, np.int32).reshape(len(paths), columns, longest)


def numbers(values: Iterable[int]) -> IntArray:
    """Return whole numbers as an array."""
    return np.array(list(values), np.int32)
