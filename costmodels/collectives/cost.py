"""Collectives and messages: latency, bytes through the busiest port and bytes out of the busiest node.

The ring visits the ranks node by node, so it leaves each node once. With payload n, g ranks, N nodes:

| collective      | n means              | bytes sent per rank | bytes out of a node | hops           |
|-----------------|----------------------|---------------------|---------------------|----------------|
| all_reduce ring | full tensor          | 2(g-1)/g n          | 2(g-1)/g n          | 2(g-1)         |
| all_reduce tree | full tensor          | 2n / 0.92           | 2n / 0.92           | 2(g/N-1+log2N) |
| all_gather      | gathered output      | (g-1)/g n           | (g-1)/g n           | g-1            |
| reduce_scatter  | un-scattered input   | (g-1)/g n           | (g-1)/g n           | g-1            |
| broadcast       | full tensor          | n                   | n                   | g-1            |
| all_reduce in_switch, one node | full  | (1+1/g) n           | 0                   | 2              |

Sources: Thakur et al. 2005 (ring); Sanders et al. 2009 (double binary tree: a node that is inner in one tree is a
leaf in the other, so n up and n down in all); Klenk et al. 2020 (in-switch reduction: every rank supplies its n to
the switch and multicasts its reduced n/g, as NCCL's NVLS does); NCCL, src/graph/tuning.cc (a chain inside the
node, trees between nodes; hops; choice by estimated time); Patarasuk and Yuan 2009 (lower bounds).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from costmodels.errors import CollectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a collective library moves one hop's data.

    ``base_latency_s`` once per collective; ``intra_hop_s`` and ``inter_hop_s`` per hop on top of the link's own
    latency; ``wire_overhead``: bytes on the wire per byte of payload (NCCL's LL sends a flag with every word: 2);
    ``limit_bytes``: the library does not use it for a larger payload. ``algorithms``: which ones can use it.
    """

    name: str
    base_latency_s: float = 0.0
    intra_hop_s: float = 0.0
    inter_hop_s: float = 0.0
    wire_overhead: float = 1.0
    limit_bytes: float = math.inf
    algorithms: tuple[str, ...] = ("ring", "tree")


IDEAL_PROTOCOL: Final = Protocol(name="ideal")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkParameters:
    """What a cluster's links attain, per direction: per device inside a node, per adapter between nodes."""

    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float
    inter_bandwidth_bytes_per_s: float
    inter_latency_s: float
    nics_per_node: int = 1
    launch_latency_s: float = 0.0
    point_to_point_latency_s: float = 0.0
    protocols: tuple[Protocol, ...] = (IDEAL_PROTOCOL,)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one collective of one group asks of the network.

    ``port_bytes``: bytes that the busiest member sends (and receives) through its own port inside the node.
    ``nic_bytes``: bytes that leave the busiest node, over all of its adapters. Both include the protocol's overhead.
    """

    algorithm: str
    latency_s: float
    port_bytes: float
    nic_bytes: float


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes and hops of an algorithm before a protocol is chosen."""

    port_bytes: float
    nic_bytes: float
    intra_hops: float
    inter_hops: float


def collective_cost(
    kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], network: NetworkParameters, algorithm: str = "auto"
) -> CollectiveCost:
    """Return latency and bytes of one collective in a group with so many ranks on each of its nodes.

    ``algorithm``: ``ring``, ``tree`` or ``in_switch`` (all_reduce only; ``in_switch`` within one node of three or
    more ranks whose network has a protocol for it) or ``auto``, the one that alone on its links ends first.
    The protocol is always the one that ends first among those that take the payload.
    Raises CollectiveError for an unknown kind or algorithm, a negative payload, a node without a rank, or
    a network without a protocol for it.
    """
    _check(kind, num_bytes, ranks_per_node, algorithm)
    if sum(ranks_per_node) == 1 or num_bytes == 0:
        return CollectiveCost("none", 0.0, 0.0, 0.0)
    return _cheapest(kind, num_bytes, ranks_per_node, network, algorithm)


def point_to_point_cost(num_bytes: int, same_node: bool, network: NetworkParameters) -> CollectiveCost:
    """Return latency and bytes of one message between two devices: alpha + n/B."""
    if num_bytes < 0:
        raise CollectiveError(f"a message cannot have {num_bytes} bytes")
    hop_s = network.intra_latency_s if same_node else network.inter_latency_s
    latency_s = network.point_to_point_latency_s + hop_s
    if same_node:
        return CollectiveCost("point_to_point", latency_s, float(num_bytes), 0.0)
    return CollectiveCost("point_to_point", latency_s, 0.0, float(num_bytes))


def exclusive_seconds(cost: CollectiveCost, ranks_per_node: tuple[int, ...], network: NetworkParameters) -> float:
    """Return how long a collective lasts alone on its links: latency + max(port, adapters).

    A group reaches as many adapters of a node as it has ranks there, at most all of them.
    """
    adapters = min(*ranks_per_node, network.nics_per_node)
    port_s = cost.port_bytes / network.intra_bandwidth_bytes_per_s
    nic_s = cost.nic_bytes / (network.inter_bandwidth_bytes_per_s * adapters)
    return cost.latency_s + max(port_s, nic_s)


def lower_bound_bytes(kind: str, num_bytes: int, num_ranks: int) -> float:
    """Return the bytes that some rank must send, whatever the algorithm, when ranks alone reduce (no switch)."""
    share = (num_ranks - 1) / num_ranks * num_bytes
    return {"all_reduce": 2 * share, "broadcast": float(num_bytes) if num_ranks > 1 else 0.0}.get(kind, share)


def _ring_passes(passes: float) -> Callable[[int, tuple[int, ...]], _Traffic]:
    """Return the traffic of a ring that sends (g-1)/g of the payload, and goes g-1 hops, ``passes`` times."""

    def traffic(num_bytes: int, ranks_per_node: tuple[int, ...]) -> _Traffic:
        ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
        sent = passes * (ranks - 1) / ranks * num_bytes
        inter = passes * (nodes - 1)
        return _Traffic(
            port_bytes=sent if max(ranks_per_node) > 1 else 0.0,
            nic_bytes=sent if nodes > 1 else 0.0,
            intra_hops=passes * (ranks - 1) - inter,
            inter_hops=inter,
        )

    return traffic


def _pipelined_ring(num_bytes: int, ranks_per_node: tuple[int, ...]) -> _Traffic:
    """Return the traffic of a chain cut into so many chunks that filling it costs only latency."""
    ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
    return _Traffic(
        port_bytes=float(num_bytes) if max(ranks_per_node) > 1 else 0.0,
        nic_bytes=float(num_bytes) if nodes > 1 else 0.0,
        intra_hops=ranks - nodes,
        inter_hops=nodes - 1,
    )


def _double_binary_tree(num_bytes: int, ranks_per_node: tuple[int, ...]) -> _Traffic:
    """Return the traffic of NCCL's tree: a chain inside each node, two binary trees over the nodes.

    Charged as NCCL's own tuner does: n up and n down at 0.92 of the bandwidth, on two nodes as well. (There the
    wires carry n each way only, but measured times of large payloads are the ring's: nccl-tests issue 152,
    92 GB/s of bus bandwidth on 4 x 25 GB/s, where half the bytes would show as 175 GB/s.)
    """
    nodes, most = len(ranks_per_node), max(ranks_per_node)
    sent = 2.0 * num_bytes / _TREE_BANDWIDTH_FRACTION
    return _Traffic(
        port_bytes=sent if most > 1 else 0.0,
        nic_bytes=sent if nodes > 1 else 0.0,
        intra_hops=2.0 * (most - 1),
        inter_hops=2.0 * math.log2(nodes),
    )


def _in_switch(num_bytes: int, ranks_per_node: tuple[int, ...]) -> _Traffic:
    """Return the traffic of a reduction inside the node's switch: n to the switch, the reduced n/g to everybody."""
    return _Traffic((1 + 1 / ranks_per_node[0]) * num_bytes, 0.0, 2.0, 0.0)


_TREE_BANDWIDTH_FRACTION: Final = 0.92
"""NCCL, src/graph/tuning.cc: bus bandwidth of the tree algorithm against the ring's."""

_LEAST_IN_SWITCH: Final = 3
"""Two ranks exchange directly, as NCCL does: the switch would save nothing."""

_ALGORITHMS: Final[Mapping[str, Mapping[str, Callable[[int, tuple[int, ...]], _Traffic]]]] = {
    "all_reduce": {"ring": _ring_passes(2.0), "tree": _double_binary_tree, "in_switch": _in_switch},
    "all_gather": {"ring": _ring_passes(1.0)},
    "reduce_scatter": {"ring": _ring_passes(1.0)},
    "broadcast": {"ring": _pipelined_ring},
}


def _check(kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], algorithm: str) -> None:
    if kind not in _ALGORITHMS:
        raise CollectiveError(f"there is no collective {kind!r}; known: {', '.join(_ALGORITHMS)}")
    if algorithm != "auto" and algorithm not in _ALGORITHMS[kind]:
        known = ", ".join(("auto", *_ALGORITHMS[kind]))
        raise CollectiveError(f"{kind} has no algorithm {algorithm!r}; it has {known}")
    if num_bytes < 0:
        raise CollectiveError(f"{kind} cannot move {num_bytes} bytes")
    if not ranks_per_node or min(ranks_per_node) < 1:
        raise CollectiveError(f"every node of a group needs 1 rank or more, got {ranks_per_node}")


@lru_cache(maxsize=65536)
def _cheapest(
    kind: str, num_bytes: int, ranks_per_node: tuple[int, ...], network: NetworkParameters, algorithm: str
) -> CollectiveCost:
    names = set(_ALGORITHMS[kind]) if algorithm == "auto" else {algorithm}
    if len(ranks_per_node) > 1 or ranks_per_node[0] < _LEAST_IN_SWITCH:
        names.discard("in_switch")
    costs = [
        _with_protocol(name, _ALGORITHMS[kind][name](num_bytes, ranks_per_node), protocol, network)
        for protocol in network.protocols
        for name in protocol.algorithms
        if name in names and num_bytes <= protocol.limit_bytes
    ]
    if not costs:
        raise CollectiveError(
            f"no protocol of this network takes {kind} ({algorithm}) of {num_bytes} bytes over {ranks_per_node} ranks"
        )
    return min(costs, key=lambda cost: exclusive_seconds(cost, ranks_per_node, network))


def _with_protocol(name: str, traffic: _Traffic, protocol: Protocol, network: NetworkParameters) -> CollectiveCost:
    latency_s = (
        network.launch_latency_s
        + protocol.base_latency_s
        + traffic.intra_hops * (network.intra_latency_s + protocol.intra_hop_s)
        + traffic.inter_hops * (network.inter_latency_s + protocol.inter_hop_s)
    )
    return CollectiveCost(
        name, latency_s, traffic.port_bytes * protocol.wire_overhead, traffic.nic_bytes * protocol.wire_overhead
    )
