"""The inputs of a collective's cost, a network's parameters and a library's protocols, and the cost itself."""

import math
from typing import Final

from msgspec import Struct


class Protocol(Struct, frozen=True, kw_only=True):
    """A collective library's way of moving one hop's data.

    ``base_latency_s``: once per collective.
    ``intra_hop_s`` and ``inter_hop_s``: per hop, in addition to the link's own latency.
    ``wire_overhead``: bytes on the wire per byte of payload (NCCL's LL sends a flag with every word: 2).
    ``port_fraction``: largest fraction of a port's rate, limited by channels and synchronisation.
    ``limit_bytes``: largest payload for which the library uses it.
    ``inter_least_bytes``: smallest payload for which the library uses it between nodes of several ranks each (its tuner
        overestimates the many hops, and stays with LL).
    ``own_share``: a ring and an exchange also pass a rank's own n/g through its port's engine (copied to the output, or
        received last without a send), for this fraction of the time of sending n/g.
    ``algorithms``: the library's algorithms that can use it (ring, tree, in_switch, collnet_direct, collnet_chain;
        exchange: all_to_all's grouped sends); all other algorithms use the protocols of the ring.
    ``kinds``: the collectives that use it; empty: all.
    """

    name: str
    base_latency_s: float = 0.0
    intra_hop_s: float = 0.0
    inter_hop_s: float = 0.0
    wire_overhead: float = 1.0
    port_fraction: float = 1.0
    limit_bytes: float = math.inf
    inter_least_bytes: float = 0.0
    own_share: float = 0.0
    algorithms: tuple[str, ...] = ("ring", "tree")
    kinds: tuple[str, ...] = ()

    @property
    def port_overhead(self) -> float:
        """Return the time at a port, as a multiple of the payload's at the port's full rate."""
        return self.wire_overhead / self.port_fraction


COLLNET: Final = frozenset({"collnet_direct", "collnet_chain"})
"""Algorithms in which the switches between nodes reduce or multicast."""

TUNED_ALGORITHMS: Final = frozenset({"ring", "tree", "in_switch"}) | COLLNET
"""Algorithms that NCCL's tuner knows for each protocol; others consist of the same messages as its ring."""

IDEAL_PROTOCOL: Final = Protocol(name="ideal")


class NetworkParameters(Struct, frozen=True, kw_only=True):
    """Attained rates of a cluster's links, per direction: per device inside a node, per adapter between nodes.

    ``intra_message_s`` and ``inter_message_s``: time for which each message of an all_to_all occupies its device's port
        or an adapter, besides its bytes (doorbell, rendezvous); other collectives send few, long messages.
    ``message_adapter_fraction``: fraction of an adapter's rate that a single message between two devices reaches.
    ``in_network_reduction``: the switches between nodes add their inputs and multicast the sum (SHARP).
    """

    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float
    inter_bandwidth_bytes_per_s: float
    inter_latency_s: float
    nics_per_node: int = 1
    launch_latency_s: float = 0.0
    point_to_point_latency_s: float = 0.0
    protocols: tuple[Protocol, ...] = (IDEAL_PROTOCOL,)
    intra_message_s: float = 0.0
    inter_message_s: float = 0.0
    message_adapter_fraction: float = 1.0
    in_network_reduction: bool = False

    def protocols_for(
        self, kind: str, algorithm: str, num_bytes: float, ranks_per_node: tuple[int, ...], *, named: bool = False
    ) -> tuple[Protocol, ...]:
        """Return the protocols that allow a payload by an algorithm; an exchange without its own uses the ring's.

        A tree or CollNet that is requested by name from a library without one also uses the ring's: it has the same
        messages.
        """
        spread = len(ranks_per_node) > 1 and max(ranks_per_node) > 1
        ours = tuple(protocol for protocol in self.protocols if not protocol.kinds or kind in protocol.kinds)
        role = algorithm if algorithm in TUNED_ALGORITHMS else "ring"
        falls_back = named and role in {"tree"} | COLLNET
        if falls_back and not any(role in protocol.algorithms for protocol in ours):
            role = "ring"
        if kind == "all_to_all" and any("exchange" in protocol.algorithms for protocol in ours):
            role = "exchange"
        return tuple(
            p
            for p in ours
            if role in p.algorithms and num_bytes <= p.limit_bytes and not (spread and num_bytes < p.inter_least_bytes)
        )

    def adapters(self, ranks_per_node: tuple[int, ...]) -> int:
        """Return the number of a node's adapters that a group uses: one per rank there, at most all of them."""
        return min(*ranks_per_node, self.nics_per_node)


class CollectiveCost(Struct, frozen=True):
    """The demand of one collective of one group on the network.

    ``port_bytes``: bytes that the busiest member sends (or receives) through its own port inside the node.
    ``nic_bytes``: bytes that leave (or enter) the busiest node, over all of its adapters. Both include the protocol's
    overhead; the unused part of an adapter during a message counts as sent. ``reduced_bytes``: payload that the busiest
    member adds to its own. ``latency_s`` includes waiting of the busiest port or adapter: for other links, if an
    algorithm uses them one after the other, and for channels that cannot fill the port. ``wire_overhead``: bytes on
    the links per byte of the flows (``collectives.flows``). ``in_turn_s``: the part of ``latency_s`` in which the
    busiest link waits for links that work before or after it; with a topology that part is computed from its routes.
    """

    algorithm: str
    latency_s: float
    port_bytes: float
    nic_bytes: float
    reduced_bytes: float = 0.0
    wire_overhead: float = 1.0
    in_turn_s: float = 0.0
