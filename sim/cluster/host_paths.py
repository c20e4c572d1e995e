"""The load of copies and of hosts' own work on the links of nodes: PCIe trees, hosts' memory and drives.

A host's memory is a link that all ranks of the node share. Each byte that is copied to or from it, and each byte that a
kernel on the host's cores reads or writes, passes it once.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.cluster.link_use import Ints, LinkUse, link_use, route_sums, together
from sim.cluster.topology.links import AnyInts, LinkKind
from sim.cluster.topology.topology import Topology


class HostPaths(Struct, frozen=True):
    """The links in nodes that ranks share with their host and its drives. ``devices[r]``: the device of rank r."""

    topology: Topology
    devices: Ints

    def copies(self, num_bytes: int, ranks: Ints, attained: float, *, to_host: bool) -> LinkUse:
        """Return the loads of a copy between each rank's device and its host's memory.

        ``attained``: the fraction of a PCIe link's bandwidth that copies reach.
        """
        routes = self.topology.host_routes(self.devices[ranks], to_host=to_host)
        rows = np.repeat(np.arange(len(ranks)), routes.num_hops)
        seconds = num_bytes / (self.topology.bandwidth_bytes_per_s[routes.links] * attained)
        use = link_use(rows, routes.links, seconds, np.full(len(rows), float(num_bytes)), self.topology.num_links)
        use = together([use, self.memory(num_bytes, ranks)], self.topology.num_links)
        return replace(use, latencies_s=route_sums(routes, self.topology.latency_s))

    def drives(self, num_bytes: int, ranks: Ints) -> LinkUse:
        """Return the loads of what each rank reads from its node's drives to its host's memory, or writes to them."""
        links = self.topology.host_link(LinkKind.DRIVES, self.devices[ranks])
        use = together([self._of_one(num_bytes, links), self.memory(num_bytes, ranks)], self.topology.num_links)
        return replace(use, latencies_s=self.topology.latency_s[links])

    def memory(self, num_bytes: int, ranks: Ints) -> LinkUse:
        """Return the loads of what each rank reads from its host's memory or writes to it."""
        return self._of_one(num_bytes, self.topology.host_link(LinkKind.MEMORY, self.devices[ranks]))

    def _of_one(self, num_bytes: int, links: AnyInts) -> LinkUse:
        """Return the loads of cases that use one link each."""
        rows, sizes = np.arange(len(links)), np.full(len(links), float(num_bytes))
        seconds = sizes / self.topology.bandwidth_bytes_per_s[links]
        use = link_use(rows, links, seconds, sizes, self.topology.num_links)
        return replace(use, latencies_s=np.zeros(len(links)))
