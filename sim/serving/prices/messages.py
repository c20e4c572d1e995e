"""The messages of a replica's ranks: sums in a group, exchanges between groups, tensors to the next stage."""

from msgspec import Struct
from msgspec.structs import replace

from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.network import NetworkParameters
from sim.serving.prices.layout import ReplicaLayout
from sim.serving.prices.software import ServingSoftware


class ReplicaMessages(Struct, frozen=True):
    """Times of messages, in seconds."""

    layout: ReplicaLayout
    network: NetworkParameters
    software: ServingSoftware

    def in_group_s(self, kind: str, num_bytes: int) -> float:
        """Return the time of an ``all_reduce`` of so many bytes, or of an ``all_gather`` to them, by a group's ranks.

        Within a node it is the faster of NCCL's and of the framework's own.
        """
        ranks = self.layout.tensor_ranks
        if sum(ranks) == 1:
            return 0.0
        cost = collective_cost(kind, num_bytes, ranks, self.network)
        library_s = exclusive_seconds(cost, ranks, self.network)
        if len(ranks) > 1:
            return library_s
        return min(library_s, self.software.collective_s(kind, num_bytes, sum(ranks), self.network))

    def exchange_s(self, num_bytes: int, top_k: int) -> float:
        """Return the time in which every group sends so many bytes, ``top_k`` times, to the experts of all.

        Choices fall on all experts alike. Groups of several ranks exchange rank by rank, all at once, and share their
        nodes' adapters.
        """
        ranks = self.layout.expert_ranks
        if sum(ranks) == 1:
            return 0.0
        cost = collective_cost("all_to_all", num_bytes * top_k, ranks, self.network)
        at_once = max(1.0, ranks[0] * self._side_by_side / self.network.nics_per_node)
        alone = max(1.0, ranks[0] / self.network.nics_per_node)
        crossing = self._crossing_share(len(ranks), top_k) * at_once / alone
        return exclusive_seconds(replace(cost, nic_bytes=cost.nic_bytes * crossing), ranks, self.network)

    def _crossing_share(self, num_nodes: int, top_k: int) -> float:
        """Return the expected part of the copies of a token for other nodes that cross the network."""
        if self.software.expert_messages == "choices":
            return 1.0
        return num_nodes * (1.0 - (1.0 - 1.0 / num_nodes) ** top_k) / top_k

    def through_stages_s(self, num_bytes: int, num_tokens: int) -> float:
        """Return the time of all messages of a pass: its hidden states from stage to stage, its tokens to the first."""
        stages = self.layout.pipeline_degree
        if stages == 1:
            return 0.0
        crossing = self.layout.crossings
        senders = min(self.layout.stage_devices, self.layout.devices_per_node)
        within_s, across_s = (message_s(num_bytes, same, senders, self.network) for same in (True, False))
        forward_across = crossing - (1 if crossing else 0)
        forward_s = forward_across * across_s + (stages - 1 - forward_across) * within_s
        return forward_s + message_s(8 * num_tokens, not crossing, senders, self.network)

    @property
    def _side_by_side(self) -> int:
        """Return the ranks of a group that lie on one node."""
        return self.layout.tensor_ranks[0]


def message_s(num_bytes: int, same_node: bool, senders: int, network: NetworkParameters) -> float:
    """Return the time of a message from device to device, while ``senders`` devices of the node send one each."""
    message = point_to_point_cost(num_bytes, same_node, network)
    if same_node:
        return message.latency_s + message.port_bytes / network.intra_bandwidth_bytes_per_s
    sharing = max(1.0, senders / network.nics_per_node)
    return message.latency_s + sharing * message.nic_bytes / network.inter_bandwidth_bytes_per_s
