"""A cluster of nodes, and the placement of ranks on it."""

from collections.abc import Mapping
from functools import cached_property
from math import inf

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.hardware import DeviceSpec, LinkSpec, NodeSpec
from costmodels.host import memory_bytes_per_s
from sim.cluster.errors import PlacementError
from sim.cluster.topology.build import build
from sim.cluster.topology.fabrics.clos import ClosSpec, build_clos
from sim.cluster.topology.links import Cable, LinkKind
from sim.cluster.topology.nodes.node import NodeLayout, lay_out
from sim.cluster.topology.topology import Topology


class Cluster(Struct, frozen=True, dict=True):
    """A cluster of ``num_nodes`` nodes; rank r is on the r-th device in use, and nodes fill in order.

        Cluster(load_node("dgx-a100-80g"), num_nodes=4, devices_per_node=8)

    ``devices_per_node``: devices in use on each node, from the first.
    ``ranks``: rank r is on the ``ranks[r]``-th device in use instead; empty: in order.
    ``wiring``: the network. Without it, a node is a switch with a port per device, each device uses its nearest
        adapter, and one non-blocking switch joins all adapters.
    ``node_devices``: for unequal nodes, each node type's device and number of nodes, in node order; empty: all nodes
        have the device of ``node``.
    """

    node: NodeSpec
    num_nodes: int
    devices_per_node: int
    wiring: Topology | None = None
    node_devices: tuple[tuple[DeviceSpec, int], ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def num_devices(self) -> int:
        """Return the number of devices in use."""
        return self.num_nodes * self.devices_per_node

    @cached_property
    def topology(self) -> Topology:
        """Return the cluster's links and routes, those to hosts' memory and to drives too; a wiring may have them."""
        host = self.node.host
        own = {LinkKind.MEMORY: Cable(bandwidth_bytes_per_s=memory_bytes_per_s(host))}
        if (drives := host.storage) is not None:
            own[LinkKind.DRIVES] = Cable(bandwidth_bytes_per_s=drives.bandwidth_bytes_per_s, latency_s=drives.latency_s)
        links = self.wiring or below_one_switch(self.node, self.num_nodes, hosts=own)
        for kind, cable in own.items():
            links = links if kind in links.host_links else links.with_host_links(kind, cable)
        return links

    @cached_property
    def devices(self) -> NDArray[np.int64]:
        """Return the device of every rank."""
        every = np.arange(self.topology.num_devices, dtype=np.int64)
        node = self.topology.node_of(every)
        order = every[np.argsort(node, kind="stable")]
        first = np.searchsorted(node[order], node[order])
        in_use = order[every - first < self.devices_per_node]
        return in_use[np.array(self.ranks, dtype=np.int64)] if self.ranks else in_use

    @cached_property
    def device_types(self) -> tuple[DeviceSpec, ...]:
        """Return the types of devices in the cluster."""
        return tuple(dict.fromkeys(device for device, _ in self._node_devices))

    @cached_property
    def layout_devices(self) -> tuple[DeviceSpec, ...]:
        """Return the device of each type of island of the topology."""
        of_nodes = [device for device, count in self._node_devices for _ in range(count)]
        first_islands = np.unique(self.topology.placement.layout, return_index=True)[1]
        return tuple(of_nodes[node] for node in self.topology.placement.first_node[first_islands].tolist())

    @cached_property
    def device_type_of(self) -> NDArray[np.int64]:
        """Return the index in ``device_types`` of every rank's device."""
        of_node = [self.device_types.index(device) for device, _ in self._node_devices]
        of_nodes = np.repeat(of_node, [count for _, count in self._node_devices])
        return of_nodes[self.topology.node_of(self.devices)]

    @property
    def _node_devices(self) -> tuple[tuple[DeviceSpec, int], ...]:
        return self.node_devices or ((self.node.device, self.num_nodes),)

    def check_fits(self, num_ranks: int) -> None:
        """Raise PlacementError unless every rank has a device of its own."""
        if num_ranks > self.num_devices:
            raise PlacementError(
                f"{num_ranks} ranks need as many devices, and {self.num_nodes} x {self.devices_per_node} "
                f"= {self.num_devices} are there"
            )


def below_one_switch(
    node: NodeSpec, num_nodes: int, oversubscription: float = 1.0, hosts: Mapping[LinkKind, Cable] | None = None
) -> Topology:
    """Return nodes of switched devices below one switch; devices reach their adapters at no cost.

    ``oversubscription``: bandwidth of a node's adapters over the bandwidth from the node to the other nodes. Above 1
        each node has a leaf switch of its own, and the one switch is the spine.
    ``hosts``: links of every node's host (``Topology.with_host_links``).
    """
    layout = NodeLayout(
        name=node.name,
        num_devices=node.devices_per_node,
        inside="nvswitch",
        nvlink=_half_way(node.intra),
        port=LinkKind.NVSWITCH if node.intra.kind == "nvswitch" else LinkKind.PORT,
        pcie=Cable(bandwidth_bytes_per_s=inf),
        num_nics=node.nics_per_node,
        nic=_half_way(node.nic),
    )
    fabric = ClosSpec()
    if oversubscription > 1.0:
        fabric = ClosSpec(leaf_ports=node.nics_per_node, spines=1, oversubscription=oversubscription)
    return build([(lay_out(layout), num_nodes)], lambda ports, _: build_clos(fabric, ports), hosts)


def _half_way(link: LinkSpec) -> Cable:
    """Return the half of a link between one end and the switch in the middle."""
    return Cable(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s / 2)
