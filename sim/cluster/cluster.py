"""A homogeneous cluster, and the placement of ranks on it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.hardware import NodeSpec
from sim.cluster.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Cluster:
    """``num_nodes`` equal nodes on a switch that never blocks; rank r lies on device r, nodes filled in order.

    ``devices_per_node`` of each node's devices are used, the first ones.
    """

    node: NodeSpec
    num_nodes: int
    devices_per_node: int

    @property
    def num_devices(self) -> int:
        """Return the number of devices."""
        return self.num_nodes * self.devices_per_node

    def check_fits(self, num_ranks: int) -> None:
        """Raise PlacementError unless every rank has a device of its own."""
        if num_ranks > self.num_devices:
            raise PlacementError(
                f"{num_ranks} ranks need as many devices, and {self.num_nodes} x {self.devices_per_node} "
                f"= {self.num_devices} are there"
            )

    def node_of(self, rank: int) -> int:
        """Return the node that a rank lies on."""
        return rank // self.devices_per_node

    def adapter_of(self, rank: int) -> int:
        """Return which of its node's adapters is nearest to a rank's device."""
        return rank % self.devices_per_node * self.node.nics_per_node // self.node.devices_per_node

    def ranks_per_node(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return how many ranks of a group lie on each node that has any, in node order."""
        return tuple(count for _, count in sorted(Counter(self.node_of(rank) for rank in group).items()))

    def adapters_of(self, group: Sequence[int], node: int) -> tuple[int, ...]:
        """Return the adapters that a group reaches on a node: those nearest to its ranks."""
        return tuple(sorted({self.adapter_of(rank) for rank in group if self.node_of(rank) == node}))
