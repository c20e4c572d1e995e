"""Where links go when devices change places, so that every route goes to a route: how a cluster is like itself."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sim.cluster.topology.links import AnyInts, IntArray
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.permuting import permutation
from sim.cluster.topology.topology import Topology
from sim.sorting import run_begins


def link_images(topology: Topology, devices_to: AnyInts) -> IntArray | None:
    """Return where each link goes if device d goes to ``devices_to[d]``, so that routes go to routes, hop by hop.

    Links that are on no route between devices stay. None where routes do not go to routes, or the network cannot say
    (``Fabric.link_images``), and where islands of one type change inside in several ways.
    """
    place, island = topology.placement, topology.device_island
    island_to = island[devices_to[place.first_device]]
    if (island[devices_to] != island_to[island]).any() or (place.layout[island_to] != place.layout).any():
        return None
    local_to = devices_to - place.first_device[island_to][island]
    inside, ports = [], []
    for rows in _runs(place.layout):
        shape, first = topology.islands[place.layout[rows.start]], int(place.first_device[rows.start])
        each = local_to[first : first + len(rows) * shape.num_devices].reshape(len(rows), -1)
        images = None if (each != each[0]).any() else _inside(topology, shape, each[0])
        if images is None:
            return None
        islands_to = island_to[rows.start : rows.stop]
        inside.append((islands_to, images[0]))
        ports.append((place.first_port[islands_to, None] + images[1]).ravel())
    beyond = _beyond(topology, np.concatenate(ports))
    if beyond is None:
        return None
    within = [(place.first_link[islands_to, None] + links_to).ravel() for islands_to, links_to in inside]
    end = topology.first_port_link + len(beyond)
    return np.concatenate(
        [*within, topology.first_port_link + beyond, np.arange(end, topology.num_links)], dtype=np.int32
    )


def _runs(layout: IntArray) -> list[range]:
    """Return the islands in runs of one type."""
    begins = np.flatnonzero(run_begins(layout)).tolist()
    return [range(*ends) for ends in pairwise([*begins, len(layout)])]


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
