"""The positions of a topology's parts in a picture. Large clusters are abbreviated to fit on a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi, sin
from typing import Final

import numpy as np
from msgspec import Struct

from sim.cluster.topology.fabrics.clos import Clos
from sim.cluster.topology.fabrics.dragonfly import Dragonfly
from sim.cluster.topology.fabrics.torus import Torus
from sim.cluster.topology.links import LinkKind, LinkTable
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.topology import Topology

MAX_ROW: Final = 8
MAX_DEVICES: Final = 16
MAX_SIDE: Final = (6, 5, 3)
MAX_GROUPS: Final = 9
MAX_ROUTERS: Final = 16
STUB: Final = 0.5
"""Drawn length of a cable that leaves the picture."""

Point = tuple[float, float]


class Box(Struct, frozen=True):
    """A labelled box. ``look``: device, switch, nic, host, node, gap (dots), words (ending here), words-middle."""

    at: Point
    label: str
    look: str


class Line(Struct, frozen=True):
    """A cable. ``bend``: its upward curve, as a fraction of its length."""

    start: Point
    end: Point
    kind: LinkKind
    bandwidth_bytes_per_s: float
    bend: float = 0.0


@dataclass(slots=True)
class Picture:
    """One drawing: boxes on top of lines, in units of about one box."""

    title: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


def lay_out_network(topology: Topology) -> Picture | None:
    """Return the picture of the network between nodes, None for a single node or domain."""
    match topology.fabric:
        case Clos() as fabric:
            return _tiers(topology, fabric)
        case Torus() as fabric:
            return _grid(fabric)
        case Dragonfly() as fabric:
            return _circle(fabric)
    return None


def lay_out_islands(topology: Topology) -> list[Picture]:
    """Return a picture of the inside of each type of node, at most three; empty for nodes that are single devices."""
    return [_inside(island) for island in topology.islands[:3] if len(island.links)]


def shown(count: int, most: int) -> list[int]:
    """Return the indices of a row to show: all, or the first ones and the last."""
    return list(range(count)) if count <= most else [*range(most - 1), count - 1]


def _row(indices: Sequence[int], width: float) -> tuple[dict[int, float], list[float]]:
    """Return the position of each index along a row, and the positions of gaps."""
    gaps = [place for place in range(1, len(indices)) if indices[place] != indices[place - 1] + 1]
    slots = len(indices) + len(gaps)
    at, left_out, slot = {}, [], 0
    for place, index in enumerate(indices):
        if place in gaps:
            left_out.append(width * (slot + 0.5) / slots)
            slot += 1
        at[index] = width * (slot + 0.5) / slots
        slot += 1
    return at, left_out


def _place(
    picture: Picture, indices: Sequence[int], size: Point, look: str, name: str, first: int = 0, end: int = 0
) -> dict[int, Point]:
    """Put a row of boxes into the picture, with its title at the left; return the position of each index.

    ``size``: width of the row, and its height in the picture. The row shows some of the numbers from ``first`` to
        ``end``.
    """
    width, height = size
    along, left_out = _row(indices, width)
    picture.boxes.append(Box((-0.2, height), _counted(end - first, name), "words"))
    picture.boxes += [Box((place, height), "", "gap") for place in left_out]
    picture.boxes += [Box((place, height), f"{name} {index - first}", look) for index, place in along.items()]
    return {index: (place, height) for index, place in along.items()}


def _tiers(topology: Topology, fabric: Clos) -> Picture:
    """Return nodes below leaves below spines below cores."""
    leaves = shown(fabric.num_leaves, MAX_ROW)
    hosts = _some_hosts(topology, fabric, leaves)
    first_core = fabric.num_leaves + fabric.num_pods * fabric.spines
    bounds = {"leaf": (0, fabric.num_leaves), "spine": (fabric.num_leaves, first_core)}
    bounds["core"] = (first_core, fabric.num_switches)
    rows = {name: [first + index for index in shown(end - first, MAX_ROW)] for name, (first, end) in bounds.items()}
    width = 1.3 * (1 + max(len(hosts), *map(len, rows.values())))
    picture = Picture("between nodes")
    host = "node" if topology.num_islands == topology.num_nodes else "domain"
    hosts_at = _place(picture, hosts, (width, 0.0), "node", host, end=topology.num_islands)
    at: dict[int, Point] = {}
    for rung, (name, row) in enumerate(rows.items(), start=1):
        if row:
            first, end = bounds[name]
            words = "switch" if fabric.num_switches == 1 else name
            at |= _place(picture, row, (width, 1.6 * rung), "switch", words, first, end)
    ports = zip(topology.ports.island.tolist(), fabric.attach.tolist(), strict=True)
    joined = set()
    for island, leaf in sorted(set(ports), key=lambda port: (port[0] not in hosts_at, port)):
        if leaf in at and (island in hosts_at or leaf not in joined):
            nic = topology.islands[topology.placement.layout[island]].nic
            speed = nic.bandwidth_bytes_per_s if nic else 0.0
            below = hosts_at.get(island) or _beside(at[leaf], -1)
            picture.lines.append(Line(below, at[leaf], LinkKind.NIC, speed))
            joined.add(leaf)
    picture.lines += _cables(fabric.links, at) + _loose_ends(fabric.links, at)
    return picture


def _beside(point: Point, direction: int) -> Point:
    return point[0], point[1] + direction * STUB


def _loose_ends(links: LinkTable, at: Mapping[int, Point]) -> list[Line]:
    """Return a short cable end for each switch whose upward, or downward, cables all leave the picture."""
    lines: list[Line] = []
    for vertex, point in at.items():
        mine = np.flatnonzero(links.source == vertex)
        for direction in (1, -1):
            way = mine[np.sign(links.target[mine] - vertex) == direction]
            if len(way) and not set(links.target[way].tolist()) & set(at):
                kind, speed = LinkKind(int(links.kind[way[0]])), float(links.bandwidth_bytes_per_s[way[0]])
                lines.append(Line(point, _beside(point, direction), kind, speed))
    return lines


def _counted(count: int, name: str) -> str:
    plural = {"leaf": "leaves", "switch": "switches"}.get(name, f"{name}s")
    return f"{count:,} {name if count == 1 else plural}"


def _some_hosts(topology: Topology, fabric: Clos, leaves: Sequence[int]) -> list[int]:
    """Return islands from every shown leaf, as many as fit into a row."""
    hosts: set[int] = set()
    for leaf in leaves:
        below = np.unique(topology.ports.island[fabric.attach == leaf]).tolist()
        hosts |= {*below[: max(2, MAX_ROW // len(leaves))], below[-1]}
    chosen = sorted(hosts)
    return [chosen[index] for index in shown(len(chosen), MAX_ROW + 2)]


def _cables(links: LinkTable, at: Mapping[int, Point]) -> list[Line]:
    """Return the cables between vertices in the picture, each once."""
    inside = np.isin(links.source, list(at)) & np.isin(links.target, list(at)) & (links.source < links.target)
    columns = (links.source, links.target, links.kind, links.bandwidth_bytes_per_s)
    rows = zip(*(column[inside].tolist() for column in columns), strict=True)
    return [Line(at[source], at[target], LinkKind(kind), speed) for source, target, kind, speed in rows]


def _grid(fabric: Torus) -> Picture:
    """Return the first routers of at most three dimensions, without links that leave the picture."""
    shape = [*fabric.shape, 1, 1][: max(3, len(fabric.shape))]
    sides = [min(size, most) for size, most in zip(shape, MAX_SIDE, strict=False)]
    whole = " x ".join(map(str, fabric.shape))
    cut = " x ".join(map(str, sides[: len(fabric.shape)]))
    picture = Picture(f"{whole} torus" if cut == whole else f"{cut} of {whole} in a torus")
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(3)]
    at: dict[int, Point] = {}
    for x, y, z in np.ndindex(*sides):
        router = int(np.dot((x, y, z), strides))
        at[router] = (1.6 * y + 0.55 * z, -1.3 * x + 0.45 * z)
        picture.boxes.append(Box(at[router], "", "device" if fabric.direct else "switch"))
    links = fabric.links
    ends = zip(*(c.tolist() for c in (links.source, links.target, links.bandwidth_bytes_per_s)), strict=True)
    for source, target, speed in ends:
        if source in at and target in at and source < target:
            start, end = at[source], at[target]
            far = abs(start[0] - end[0]) + abs(start[1] - end[1]) > 2.0
            picture.lines.append(Line(start, end, LinkKind.TORUS, speed, 0.12 if far else 0.0))
    return picture


def _circle(fabric: Dragonfly) -> Picture:
    """Return some groups on a circle, each a small circle of routers."""
    groups, routers = shown(fabric.num_groups, MAX_GROUPS), shown(fabric.routers_per_group, MAX_ROUTERS)
    words = f"{fabric.num_groups:,} groups of {fabric.routers_per_group} routers"
    picture = Picture(words if len(groups) == fabric.num_groups else f"{len(groups)} of {words}")
    at: dict[int, Point] = {}
    for place, group in enumerate(groups):
        angle = 2 * pi * place / len(groups) + pi / 2
        middle = (4.7 * cos(angle), 4.7 * sin(angle))
        for spot, router in enumerate(routers):
            turn = angle + pi + 2 * pi * (spot + 0.5) / len(routers)
            at[group * fabric.routers_per_group + router] = (middle[0] + 1.2 * cos(turn), middle[1] + 1.2 * sin(turn))
        picture.boxes.append(Box((6.6 * cos(angle), 6.4 * sin(angle)), f"group {group}", "words-middle"))
    picture.boxes += [Box(point, "", "switch") for point in at.values()]
    picture.lines += _cables(fabric.links, at)
    return picture


def _inside(island: Island) -> Picture:
    """Return one node: NVSwitch above the devices, below them PCIe switches, adapters, and sockets at the bottom."""
    chosen = [vertex for vertex, node in enumerate(island.vertex_nodes) if node in {0, -1}]
    words = f"inside {island.name}" if island.name != "node" else "inside a node"
    if island.num_nodes > 1:
        words += f" (one of {island.num_nodes} that share the NVSwitch)"
    picture = Picture(words)
    devices = [vertex for vertex in chosen if vertex < island.num_devices]
    devices = [devices[index] for index in shown(len(devices), MAX_DEVICES)]
    rows: dict[str, list[int]] = {"gpu": devices}
    for vertex in chosen:
        if vertex >= island.num_devices:
            rows.setdefault(island.vertex_names[vertex].rsplit(" ", 1)[0], []).append(vertex)
    width = 1.3 * max(len(devices), 2)
    heights = {"nvswitch": 5.4, "switch": 5.4, "gpu": 3.6, "pcie switch": 2.2, "nic": 0.0, "socket": 1.1}
    looks = {
        "nvswitch": "switch", "switch": "switch", "gpu": "device", "pcie switch": "switch", "nic": "nic",
        "socket": "host",
    }  # fmt: skip
    at: dict[int, Point] = {}
    for name, row in sorted(rows.items(), key=lambda entry: entry[0] == "socket"):  # switches are placed before sockets
        along, left_out = _row(row if name == "gpu" else list(range(len(row))), width)
        picture.boxes += [Box((place, heights[name]), "", "gap") for place in left_out]
        for vertex, place in zip(row, along.values(), strict=True):
            under = name == "socket" and any(abs(place - x) < 0.1 and y > 2 for x, y in at.values())
            at[vertex] = (place - 0.6 * under, heights[name])
            picture.boxes.append(Box(at[vertex], island.vertex_names[vertex], looks[name]))
    for line in _cables(island.links, at):
        among_devices = line.kind == LinkKind.NVLINK
        bend = -0.35 if among_devices and abs(line.start[0] - line.end[0]) > 1.4 else 0.0
        picture.lines.append(Line(line.start, line.end, line.kind, line.bandwidth_bytes_per_s, bend))
    return picture
