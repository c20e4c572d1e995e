"""Where links go when devices change places, so that every route goes to a route: how a cluster is like itself."""

from collections.abc import Sequence

import numpy as np

from sim.cluster.topology.links import AnyInts, IntArray
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.permuting import permutation
from sim.cluster.topology.topology import Topology


def link_images(topology: Topology, devices_to: AnyInts) -> IntArray | None:
    """Return where each link goes if device d goes to ``devices_to[d]``, so that routes go to routes, hop by hop.

    Links that are on no route between devices stay. None where routes do not go to routes, or the network cannot say
    (``Fabric.link_images``), and where islands of one type change inside in several ways.
    """
    place, island = topology.placement, topology.device_island
    island_to = island[devices_to[place.first_device]]
    if (island[devices_to] != island_to[island]).any() or (place.layout[island_to] != place.layout).any():
        return None
    local_to = devices_to - place.first_device[island_to[island]]
    ports_to = np.arange(len(topology.ports), dtype=np.int32)
    inside = []
    for layout, shape in enumerate(topology.islands):
        rows = np.flatnonzero(place.layout == layout)
        each = local_to[place.first_device[rows][:, None] + np.arange(shape.num_devices)]
        images = None if (each != each[:1]).any() else _inside(topology, shape, each[0])
        if images is None:
            return None
        inside.append((rows, images[0]))
        _write(ports_to, place.first_port, rows, island_to, images[1])
    beyond = _beyond(topology, ports_to)
    if beyond is None:
        return None
    found = np.arange(topology.num_links, dtype=np.int32)
    for rows, links_to in inside:
        _write(found, place.first_link, rows, island_to, links_to)
    found[topology.first_port_link : topology.first_port_link + len(beyond)] = topology.first_port_link + beyond
    return found


def _write(numbers: IntArray, first: IntArray, rows: AnyInts, island_to: IntArray, images: IntArray) -> None:
    """Write where the numbers of some islands go, each island's from ``first`` on."""
    numbers[first[rows][:, None] + np.arange(len(images))] = first[island_to[rows]][:, None] + images


def _inside(topology: Topology, shape: Island, devices_to: AnyInts) -> tuple[IntArray, IntArray] | None:
    """Return where the links and the ports of an island go if its devices change places; None if paths break."""
    before, after = [shape.device_paths], [shape.device_paths[devices_to][:, devices_to]]
    ports_to = np.arange(shape.num_ports, dtype=np.int32)
    if topology.fabric is not None:
        own, nearest = np.arange(shape.num_devices), shape.nearest_port
        if (found := permutation(nearest, nearest[devices_to], shape.num_ports)) is None:
            return None
        ports_to = found
        if topology.fabric.keeps_rails:  # a device may send by any port of its node
            before += [shape.out_paths, shape.in_paths]
            after += [shape.out_paths[devices_to][:, ports_to], shape.in_paths[ports_to][:, devices_to]]
        else:
            before += [shape.out_paths[own, nearest], shape.in_paths[nearest, own]]
            after += [paths[devices_to] for paths in before[1:]]
    links_to = permutation(_flat(before), _flat(after), len(shape.links))
    return None if links_to is None else (links_to, ports_to)


def _flat(tables: Sequence[IntArray]) -> IntArray:
    return np.concatenate([table.ravel() for table in tables])


def _beyond(topology: Topology, ports_to: IntArray) -> IntArray | None:
    """Return where the links of ports, out and in, and those between switches go, counted from the first of them."""
    fabric, rail, num_ports = topology.fabric, topology.ports.rail, len(ports_to)
    if fabric is None:
        return np.zeros(0, np.int32)
    if fabric.direct or (images := fabric.link_images(ports_to)) is None:
        return None
    if fabric.keeps_rails:  # a message leaves by the port of its node on the rail of the port by which it enters
        for numbers in (rail, np.arange(num_ports) - rail):
            if permutation(numbers, numbers[ports_to], num_ports) is None:
                return None
    return np.concatenate([ports_to, num_ports + ports_to, 2 * num_ports + images])
