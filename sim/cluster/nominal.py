"""What a collective library takes a topology's links for when it chooses an algorithm."""

from dataclasses import replace

import numpy as np

from costmodels.collectives import NetworkParameters
from costmodels.profile import NetworkProfile
from sim.cluster.topology.island import Island
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.topology import Topology

_FROM_DEVICES = (LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.PCIE, LinkKind.HOST)
"""Ways out of a device, the one that a library prefers first."""


def wired_parameters(parameters: NetworkParameters, topology: Topology, attained: NetworkProfile) -> NetworkParameters:
    """Return the parameters with the bandwidths and the number of adapters that the topology has.

    Inside a node: all that leaves a device by its best kind of link, of the slowest type of node. Between nodes: the
    slowest adapter (where devices are joined directly, all that leaves one), and the fewest adapters of any node. Like
    a library, it looks at nothing beyond the adapters, and at no straggler. Latencies are as they were: those of a
    group's routes take their place. What a topology lacks (one device per node, one node) stays as it was, too.
    """
    found, fabric = parameters, topology.fabric
    inside = [rate for rate in map(_from_device, topology.islands) if rate]
    if inside:
        found = replace(found, intra_bandwidth_bytes_per_s=min(inside) * attained.intra_fraction)
    if fabric is None:
        return found
    if fabric.direct:
        leaving = fabric.links.source == 0
        between = float(fabric.links.bandwidth_bytes_per_s[leaving].sum())
    else:
        between = float(topology.ports.bandwidth_bytes_per_s.min())
    adapters = int(np.bincount(topology.ports.node, minlength=topology.num_nodes).min())
    return replace(
        found, inter_bandwidth_bytes_per_s=between * attained.inter_fraction, nics_per_node=max(1, adapters)
    )  # fmt: skip


def _from_device(island: Island) -> float:
    """Return the bytes/s that leave an island's first device by its best kind of link; 0 where it is alone."""
    if island.num_devices == 1:
        return 0.0
    leaving = island.links.source == 0
    kinds = [kind for kind in _FROM_DEVICES if (leaving & (island.links.kind == kind)).any()]
    return float(island.links.bandwidth_bytes_per_s[leaving & (island.links.kind == kinds[0])].sum())
