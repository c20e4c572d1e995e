"""The prices of keys and values that move between replicas of one cluster."""

from msgspec import Struct

from sim.serving.memory import cached_bytes
from sim.serving.prices.cost import KernelCost
from sim.serving.prices.messages import message_s


class KvLinks(Struct, frozen=True, kw_only=True):
    """Links of replicas that lie one after the other on the cluster's devices, ``devices_per_node`` of them on a node.

    Every rank of a group sends its own part to its fellow. Ranks of one node share its adapters.
    """

    cost: KernelCost
    devices_per_node: int

    def transfer_s(self, source: int, target: int, tokens: int) -> float:
        """Return the time in which the keys and values of so many tokens move from one replica to another."""
        cost = self.cost
        num_bytes = tokens * max(cached_bytes(cost, stage) for stage in cost.stages)
        same_node = self._node(source) == self._node(target)
        return message_s(num_bytes, same_node, cost.layout.tensor_ranks[0], cost.messages.network)

    def _node(self, replica: int) -> int:
        return replica * self.cost.layout.num_devices // self.devices_per_node
