"""The prices of keys and values that move between replicas of one cluster."""

from msgspec import Struct

from costmodels.collectives.cost import point_to_point_cost
from costmodels.kernels.tensor import BYTES_PER_ELEMENT
from costmodels.profile import network_parameters
from sim.serving.cost import KernelCost


class KvLinks(Struct, frozen=True, kw_only=True):
    """Links of replicas that lie one after the other on the cluster's devices, ``devices_per_node`` of them on a node.

    Every rank of a replica sends its own part to its fellow. Ranks of one node share its adapters.
    """

    cost: KernelCost
    devices_per_node: int

    def transfer_s(self, source: int, target: int, tokens: int) -> float:
        """Return the time in which the keys and values of so many tokens move from one replica to another."""
        cost = self.cost
        element = BYTES_PER_ELEMENT[cost.cache_dtype]
        num_bytes = tokens * cost.model.kv_bytes_per_token(element, cost.degree)
        network = network_parameters(cost.node, cost.profile)
        same_node = self._node(source) == self._node(target)
        message = point_to_point_cost(num_bytes, same_node, network)
        if same_node:
            return message.latency_s + message.port_bytes / network.intra_bandwidth_bytes_per_s
        sharing = max(1.0, cost.ranks_per_node[0] / network.nics_per_node)
        return message.latency_s + sharing * message.nic_bytes / network.inter_bandwidth_bytes_per_s

    def _node(self, replica: int) -> int:
        return replica * self.cost.degree // self.devices_per_node
