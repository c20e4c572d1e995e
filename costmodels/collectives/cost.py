"""The cost of a collective or message on a network, and the choice of algorithm and protocol, as NCCL's tuner does.

A cost is a latency and bytes on the busiest links; ``collectives.traffic`` has the table of closed forms.
Sources: NCCL, src/graph/tuning.cc (choice by estimated time); Patarasuk and Yuan 2009 (lower bounds).
"""

from functools import lru_cache
from typing import Final

from costmodels.collectives.network import COLLNET, CollectiveCost, NetworkParameters, Protocol
from costmodels.collectives.traffic import LIBRARY, TRAFFIC, Traffic
from costmodels.errors import AlgorithmError, CollectiveError

_LEAST_IN_SWITCH: Final = 3
"""Fewest ranks for in-switch reduction.

Two ranks exchange directly, as in NCCL, since the switch would save nothing.
"""

_MOST_IN_COLLNET: Final = 8
"""NCCL, src/init.cc: CollNet is disabled beyond NCCL_MAX_DIRECT_ARITY + 1 GPUs per node."""

_FAN_S: Final = 0.4e-6
"""NCCL, src/graph/tuning.cc: arity serialization latency of CollnetDirect."""


def collective_cost(
    kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], network: NetworkParameters, algorithm: str = "auto"
) -> CollectiveCost:
    """Return latency and bytes of one collective in a group with these numbers of ranks on its nodes.

    ``num_bytes``: the full tensor (all_reduce, broadcast, reduce), the gathered output (all_gather), the un-scattered
        input (reduce_scatter), one rank's send buffer (all_to_all), 0 (barrier).
    ``algorithm``: a name of ``traffic.TRAFFIC`` for the kind, or ``auto``: NCCL's fastest algorithm alone on its links.

    ``why_not`` states which groups the algorithms of switches cannot serve. CollNet concerns the network between nodes:
    in a group within one node it means ``auto``. The protocol is always the fastest of those that allow the payload.

    Raises AlgorithmError for an algorithm that the kind lacks or that cannot serve this group, CollectiveError for an
    unknown kind, a negative payload, a barrier with a payload, or a node without a rank.
    """
    _check(kind, num_bytes, ranks_per_node, algorithm)
    if sum(ranks_per_node) == 1 or (num_bytes == 0 and kind != "barrier"):
        return CollectiveCost("none", 0.0, 0.0, 0.0)
    if algorithm in COLLNET and len(ranks_per_node) == 1:
        algorithm = "auto"
    return _cheapest(kind, num_bytes, ranks_per_node, network, algorithm)


def why_not(kind: str, algorithm: str, ranks_per_node: tuple[int, ...], network: NetworkParameters) -> str:
    """Return why an algorithm cannot serve a group on a network, in words; empty if it can.

    Sources: NCCL, src/init.cc and src/graph/tuning.cc: NVLS within one node; CollNet between nodes of equally many
    ranks, at most 8, and for all_gather and reduce_scatter with an adapter for each.
    """
    if algorithm == "in_switch":
        if len(ranks_per_node) > 1 or ranks_per_node[0] < _LEAST_IN_SWITCH:
            return f"it needs {_LEAST_IN_SWITCH} or more ranks on one node"
        if not any(algorithm in protocol.algorithms for protocol in network.protocols):
            return "the nodes have no switch that reduces"
    if algorithm in COLLNET:
        if not network.in_network_reduction:
            return "the switches between nodes do not reduce"
        if len(ranks_per_node) == 1:
            return "there is no switch between ranks on one node"
        if len(set(ranks_per_node)) > 1 or ranks_per_node[0] > _MOST_IN_COLLNET:
            return f"it needs as many ranks on every node, at most {_MOST_IN_COLLNET}"
        if kind != "all_reduce" and ranks_per_node[0] > network.nics_per_node:
            return f"it needs an adapter for each rank of a node, and there are {network.nics_per_node}"
    return ""


def point_to_point_cost(num_bytes: int, same_node: bool, network: NetworkParameters) -> CollectiveCost:
    """Return latency and bytes of one message between two devices: alpha + n/B, with B the rate of a single message."""
    if num_bytes < 0:
        raise CollectiveError(f"a message cannot have {num_bytes} bytes")
    hop_s = network.intra_latency_s if same_node else network.inter_latency_s
    latency_s = network.point_to_point_latency_s + hop_s
    if same_node:
        return CollectiveCost("point_to_point", latency_s, float(num_bytes), 0.0)
    return CollectiveCost("point_to_point", latency_s, 0.0, num_bytes / network.message_adapter_fraction)


def exclusive_seconds(cost: CollectiveCost, ranks_per_node: tuple[int, ...], network: NetworkParameters) -> float:
    """Return the seconds of a collective alone on its links: latency + max(port, adapters).

    A group uses as many adapters of a node as it has ranks there, at most all of them.
    """
    port_s = cost.port_bytes / network.intra_bandwidth_bytes_per_s
    nic_s = cost.nic_bytes / (network.inter_bandwidth_bytes_per_s * network.adapters(ranks_per_node))
    return cost.latency_s + max(port_s, nic_s)


def lower_bound_bytes(kind: str, num_bytes: int, num_ranks: int) -> float:
    """Return the least bytes that some rank must send under any algorithm in which only ranks reduce (no switch)."""
    share = (num_ranks - 1) / num_ranks * num_bytes
    whole = float(num_bytes) if num_ranks > 1 else 0.0
    return {"all_reduce": 2 * share, "broadcast": whole, "reduce": whole}.get(kind, share)


def _check(kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], algorithm: str) -> None:
    if kind not in TRAFFIC:
        raise CollectiveError(f"there is no collective {kind!r}; known: {', '.join(TRAFFIC)}")
    if algorithm != "auto" and algorithm not in TRAFFIC[kind]:
        known = ", ".join(("auto", *TRAFFIC[kind]))
        raise AlgorithmError(kind, algorithm, f"{kind} has no algorithm {algorithm!r}; it has {known}")
    if num_bytes < 0:
        raise CollectiveError(f"{kind} cannot move {num_bytes} bytes")
    if kind == "barrier" and num_bytes:
        raise CollectiveError(f"a barrier moves no payload, got {num_bytes} bytes")
    if not ranks_per_node or min(ranks_per_node) < 1:
        raise CollectiveError(f"every node of a group needs 1 rank or more, got {ranks_per_node}")


@lru_cache(maxsize=65536)
def _cheapest(
    kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], network: NetworkParameters, algorithm: str
) -> CollectiveCost:
    names = LIBRARY[kind] if algorithm == "auto" else (algorithm,)
    names = tuple(name for name in names if not (refused := why_not(kind, name, ranks_per_node, network)))
    if not names:
        raise AlgorithmError(kind, algorithm, f"{kind} by {algorithm} over {_in_words(ranks_per_node)}: {refused}")
    traffic = {name: TRAFFIC[kind][name](num_bytes, ranks_per_node) for name in names}
    costs = [
        _with_protocol(name, traffic[name], protocol, ranks_per_node, network)
        for name in names
        for protocol in network.protocols_for(kind, name, num_bytes, ranks_per_node, named=algorithm != "auto")
    ]
    if not costs:
        rule = f"no protocol of this network takes {kind} of {num_bytes} bytes by {algorithm}"
        raise AlgorithmError(kind, algorithm, f"{rule} over {_in_words(ranks_per_node)}")
    return min(costs, key=lambda cost: exclusive_seconds(cost, ranks_per_node, network))


def _in_words(ranks_per_node: tuple[int, ...]) -> str:
    counts = sorted(set(ranks_per_node))
    per_node = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    where = "1 node" if len(ranks_per_node) == 1 else f"each of {len(ranks_per_node)} nodes"
    return f"{per_node} {'rank' if counts[-1] == 1 else 'ranks'} on {where}"


def _with_protocol(
    name: str, traffic: Traffic, protocol: Protocol, ranks_per_node: tuple[int, ...], network: NetworkParameters
) -> CollectiveCost:
    latency_s = (
        network.launch_latency_s
        + protocol.base_latency_s
        + traffic.intra_hops * (network.intra_latency_s + protocol.intra_hop_s)
        + traffic.inter_hops * (network.inter_latency_s + protocol.inter_hop_s)
        + traffic.fan * _FAN_S
        + _waiting_s(traffic, protocol, ranks_per_node, network)
    )
    return CollectiveCost(
        name,
        latency_s,
        traffic.port_bytes * protocol.wire_overhead,
        traffic.nic_bytes * protocol.wire_overhead,
        traffic.reduced_bytes,
        protocol.wire_overhead / traffic.bandwidth_fraction,
        _in_turn_s(traffic, protocol, ranks_per_node, network),
    )


def _waiting_s(
    traffic: Traffic, protocol: Protocol, ranks_per_node: tuple[int, ...], network: NetworkParameters
) -> float:
    """Return the time that the busiest link waits for other links and for messages' fixed costs."""
    port_s = protocol.port_overhead / network.intra_bandwidth_bytes_per_s
    nic_s = protocol.wire_overhead / network.inter_bandwidth_bytes_per_s
    adapters = network.adapters(ranks_per_node)
    used = 1 if traffic.one_adapter else adapters
    through_port = traffic.port_bytes + traffic.waiting_port_bytes + protocol.own_share * traffic.own_bytes
    ports = through_port * port_s + traffic.port_messages * network.intra_message_s
    nics = (traffic.nic_bytes + traffic.waiting_nic_bytes) * nic_s + traffic.nic_messages * network.inter_message_s
    path_s = ports + nics / used if traffic.in_series else max(ports, nics / used)
    sent_s = traffic.port_bytes * protocol.wire_overhead / network.intra_bandwidth_bytes_per_s
    return path_s - max(sent_s, traffic.nic_bytes * nic_s / adapters)


def _in_turn_s(
    traffic: Traffic, protocol: Protocol, ranks_per_node: tuple[int, ...], network: NetworkParameters
) -> float:
    """Return the time that the busiest link waits for links that work before or after it, at the links' full rates."""
    adapters = network.adapters(ranks_per_node)
    port_s = protocol.wire_overhead / network.intra_bandwidth_bytes_per_s
    nic_s = protocol.wire_overhead / network.inter_bandwidth_bytes_per_s
    ports = (traffic.port_bytes + traffic.waiting_port_bytes) * port_s
    nics = (traffic.nic_bytes + traffic.waiting_nic_bytes) * nic_s / (1 if traffic.one_adapter else adapters)
    sent_s = max(traffic.port_bytes * port_s, traffic.nic_bytes * nic_s / adapters)
    return (ports + nics if traffic.in_series else max(ports, nics)) - sent_s
