"""A collective library's view of a topology: the nominal link rates by which it chooses algorithms."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.collectives.network import NetworkParameters
from costmodels.profile import NetworkProfile
from sim.cluster.topology import max_flow
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.nodes.island import Island
from sim.cluster.topology.topology import Topology

_PORTS = (LinkKind.NVSWITCH, LinkKind.PORT)


class Library(Struct, frozen=True):
    """The rates of a collective library among nodes of one type.

    ``intra_fraction`` and ``inter_fraction``: the attained fractions of the links' bandwidths inside and between nodes.
    """

    parameters: NetworkParameters
    intra_fraction: float = 1.0
    inter_fraction: float = 1.0


def library_on(parameters: NetworkParameters, topology: Topology, layout: int, attained: NetworkProfile) -> Library:
    """Return the library on one type of island, with the topology's bandwidths and number of adapters.

    Between nodes it takes the bandwidth of an adapter of that type (of all links that leave a device, if devices are
    joined directly), and the number of adapters of one island. Like a real library, it ignores stragglers and the
    network beyond the adapters. Inside an island, the bandwidths and latencies of the group's links replace the
    parameters. Values that a topology lacks (one device per node, one node) stay. A node without NVSwitch has no
    in-switch reduction.
    """
    island, fabric = topology.islands[layout], topology.fabric
    found = replace(parameters, in_network_reduction=fabric is not None and fabric.reduces)
    if not is_switched(island):
        found = replace(found, protocols=tuple(p for p in found.protocols if p.algorithms != ("in_switch",)))
    if island.num_devices > 1:
        inside = inside_bytes_per_s(island, range(island.num_devices))
        found = replace(found, intra_bandwidth_bytes_per_s=inside * attained.intra_fraction)
    if fabric is not None:
        if fabric.direct:
            leaving = fabric.links.source == 0
            between = float(fabric.links.bandwidth_bytes_per_s[leaving].sum())
        else:
            between = island.nic.bandwidth_bytes_per_s if island.nic else 0.0
        adapters = max(1, island.num_ports)
        found = replace(
            found, inter_bandwidth_bytes_per_s=between * attained.inter_fraction, nics_per_node=adapters
        )  # fmt: skip
    return Library(found, attained.intra_fraction, attained.inter_fraction)


def is_switched(island: Island) -> bool:
    """Return whether each device has one port into an NVSwitch or similar switch, as the closed forms assume."""
    return bool(np.isin(island.links.kind, _PORTS).any())


def inside_bytes_per_s(island: Island, members: Sequence[int]) -> float:
    """Return the largest bandwidth of rings over some devices of an island, per direction; 0 for one device.

    It is the smallest cut between two of the devices: of their ports into the NVSwitch; without one, of the NVLinks
    among them; if NVLinks do not join them all, of NVLinks and the host's links. Rings use the members' links alone.
    Source: NCCL, src/graph/search.cc: a ring's bandwidth is that of its slowest hop, and no GPU outside the
    communicator forwards data.
    """
    if len(members) < 2:
        return 0.0
    if is_switched(island):
        ports = np.isin(island.links.kind, _PORTS) & (island.links.source == members[0])
        return float(island.links.bandwidth_bytes_per_s[ports].sum())
    strangers = set(range(island.num_devices)) - set(members)
    columns = (island.links.source, island.links.target, island.links.bandwidth_bytes_per_s, island.links.kind)
    links = [
        (first, second, rate, kind)
        for first, second, rate, kind in zip(*(column.tolist() for column in columns), strict=True)
        if first not in strangers and second not in strangers
    ]
    over_nvlink = [(first, second, rate) for first, second, rate, kind in links if kind == LinkKind.NVLINK]
    return _smallest_cut(over_nvlink, members) or _smallest_cut([link[:3] for link in links], members)


def _smallest_cut(links: "Sequence[max_flow.Flow]", members: Sequence[int]) -> float:
    """Return the smallest maximum flow between two members.

    Links go both ways, so only flows from the first are tried.
    """
    first, infinite = members[0], float("inf")
    return min(max_flow.max_flow(links, {first: infinite}, {other: infinite}) for other in members[1:])
