"""A cluster of one type of node, and the placement of ranks on it."""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware import LinkSpec, NodeSpec
from sim.cluster.errors import PlacementError
from sim.cluster.topology.build import build
from sim.cluster.topology.clos import ClosSpec, build_clos
from sim.cluster.topology.links import Cable
from sim.cluster.topology.node import NodeLayout, lay_out
from sim.cluster.topology.topology import Topology


@dataclass(frozen=True)
class Cluster:
    """``num_nodes`` equal nodes; rank r lies on the r-th device in use, nodes filled in order.

    ``devices_per_node`` of each node's devices are used, the first ones. Without a ``wiring`` of its own, a node is a
    switch with a port per device, each device reaches the adapter nearest to it, and one switch that never blocks
    joins all adapters.
    """

    node: NodeSpec
    num_nodes: int
    devices_per_node: int
    wiring: Topology | None = None

    @property
    def num_devices(self) -> int:
        """Return the number of devices in use."""
        return self.num_nodes * self.devices_per_node

    @cached_property
    def topology(self) -> Topology:
        """Return the cluster's links and routes."""
        return self.wiring or _one_switch(self.node, self.num_nodes)

    @cached_property
    def devices(self) -> NDArray[np.int64]:
        """Return the device of every rank that has one."""
        per_node = self.topology.num_devices // self.num_nodes
        ranks = np.arange(self.num_devices, dtype=np.int64)
        return ranks // self.devices_per_node * per_node + ranks % self.devices_per_node

    def check_fits(self, num_ranks: int) -> None:
        """Raise PlacementError unless every rank has a device of its own."""
        if num_ranks > self.num_devices:
            raise PlacementError(
                f"{num_ranks} ranks need as many devices, and {self.num_nodes} x {self.devices_per_node} "
                f"= {self.num_devices} are there"
            )


def _one_switch(node: NodeSpec, num_nodes: int) -> Topology:
    """Return nodes of switched devices below one switch; the way from a device to its adapter costs nothing."""
    layout = NodeLayout(
        name=node.name,
        num_devices=node.devices_per_node,
        inside="nvswitch",
        nvlink=_half_way(node.intra),
        pcie=Cable(bandwidth_bytes_per_s=inf),
        num_nics=node.nics_per_node,
        nic=_half_way(node.nic),
    )
    return build([(lay_out(layout), num_nodes)], lambda ports, _: build_clos(ClosSpec(), ports))


def _half_way(link: LinkSpec) -> Cable:
    """Return the way from one end to the switch in the middle."""
    return Cable(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s / 2)
