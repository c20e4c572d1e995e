"""The cost of a step list round by round: the check of the closed forms, and the model of uneven exchanges."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.collectives.catalogue import collective_steps
from costmodels.collectives.cost import exclusive_seconds
from costmodels.collectives.network import CollectiveCost, NetworkParameters, Protocol
from costmodels.collectives.steps import Ints, StepList
from costmodels.collectives.traffic import LIBRARY
from costmodels.errors import CollectiveError

_OWN_SHARE: Final = frozenset({"ring", "direct", "pairwise"})
"""Algorithms in which a rank's own share passes through its engine (see ``Protocol``)."""


class _Load(Struct, frozen=True):
    """Load of steps on the busiest port and the busiest node's adapters, in or out, and the number of senders there."""

    port_bytes: float
    port_messages: int
    nic_bytes: float
    nic_messages: int
    nic_users: int


class _Sent(Struct, frozen=True):
    """Messages: bytes, ends, the nodes of the ends, rounds, and whether the target adds them to its own."""

    size: Ints
    source: Ints
    target: Ints
    source_node: Ints
    target_node: Ints
    round: Ints
    reduces: NDArray[np.bool_]

    def only(self, chosen: NDArray[np.bool_]) -> "_Sent":
        """Return some of the messages."""
        return _Sent(
            self.size[chosen], self.source[chosen], self.target[chosen], self.source_node[chosen],
            self.target_node[chosen], self.round[chosen], self.reduces[chosen],
        )  # fmt: skip

    def of_round(self, number: int) -> "_Sent":
        """Return the messages of a round."""
        return self.only(self.round == number)


class _Work(Struct, frozen=True):
    """Load of a step list: of each round, of all rounds, of the busiest reduction and of own shares."""

    algorithm: str
    kind: str
    rounds: Sequence[_Load]
    total: _Load
    reduced_bytes: float
    own_bytes: float


def steps_cost(
    algorithm: str,
    case: StepList,
    chunk_bytes: Sequence[int] | Ints,
    ranks_per_node: tuple[int, ...],
    network: NetworkParameters,
) -> CollectiveCost:
    """Return the cost of a step list with consecutive rounds, with the fastest protocol.

    The time of a round is one hop plus the time of its busiest port or adapter. Every rank that sends out of its node
    has an adapter of its own while there are enough. Steps without bytes are left out, except those of a barrier.
    Raises CollectiveError if the chunks, ranks or protocols do not fit the list.
    """
    sizes = np.asarray(chunk_bytes, dtype=np.int64)
    least = int(sizes.min()) if len(sizes) else 0
    if len(sizes) != case.num_chunks or sum(ranks_per_node) != case.num_ranks or least < 0:
        raise CollectiveError(
            f"{case.kind} of {case.num_ranks} ranks and {case.num_chunks} chunks cannot have {len(sizes)} sizes "
            f"(least {least} bytes) over {ranks_per_node} ranks"
        )
    sent = _sent(case, sizes, np.repeat(np.arange(len(ranks_per_node)), ranks_per_node))
    if not len(sent.size):
        return CollectiveCost("none", 0.0, 0.0, 0.0)
    rounds = [_load(sent.of_round(number)) for number in np.unique(sent.round).tolist()]
    total, reduced = _load(sent), _busiest_reduction(sent)
    payload = int(sizes.sum()) / (case.num_ranks if case.kind == "all_to_all" else 1)
    own = payload / case.num_ranks if algorithm in _OWN_SHARE and case.kind not in {"broadcast", "reduce"} else 0.0
    protocols = network.protocols_for(case.kind, algorithm, payload, ranks_per_node)
    if not protocols:
        raise CollectiveError(f"no protocol of this network takes {case.kind} ({algorithm}) of {payload:.0f} bytes")
    work = _Work(algorithm, case.kind, rounds, total, reduced, own)
    costs = [_cost(work, protocol, ranks_per_node, network) for protocol in protocols]
    return min(costs, key=lambda cost: exclusive_seconds(cost, ranks_per_node, network))


def uneven_all_to_all_cost(
    pair_bytes: Sequence[Sequence[int]] | Ints,
    ranks_per_node: tuple[int, ...],
    network: NetworkParameters,
    algorithm: str = "auto",
) -> CollectiveCost:
    """Return the cost of an all_to_all in which rank s sends pair_bytes[s][t] bytes to rank t.

    The busiest rank and the busiest node, sending or receiving, determine it (all_to_all_single with split sizes).
    Raises CollectiveError for an unknown algorithm or sizes that are no square of the group's ranks.
    """
    ranks = sum(ranks_per_node)
    if len(pair_bytes) != ranks or any(len(row) != ranks for row in pair_bytes):
        raise CollectiveError(f"an uneven all_to_all of {ranks} ranks needs {ranks} x {ranks} sizes")
    name = LIBRARY["all_to_all"][0] if algorithm == "auto" else algorithm
    case = _exchange(name, ranks_per_node)
    return steps_cost(name, case, np.asarray(pair_bytes, dtype=np.int64).ravel(), ranks_per_node, network)


def direct_exchange_costs(
    tables: NDArray[np.float64], ranks_per_node: tuple[int, ...], network: NetworkParameters
) -> list[CollectiveCost]:
    """Return the costs of several uneven all_to_alls in which each rank sends to each, in one pass.

    ``tables`` [exchange, source, target]: bytes, which need not be whole. Each cost is that of
    ``uneven_all_to_all_cost`` by ``direct``.
    """
    ranks = sum(ranks_per_node)
    columns = [loads.tolist() for loads in _direct_loads(tables, ranks_per_node)]
    costs = []
    for *values, total in zip(*columns, tables.sum((1, 2)).tolist(), strict=True):
        load, payload = _Load(*values), total / ranks
        if not load.port_bytes and not load.nic_bytes:
            costs.append(CollectiveCost("none", 0.0, 0.0, 0.0))
            continue
        work = _Work("direct", "all_to_all", (load,), load, 0.0, payload / ranks)
        protocols = network.protocols_for("all_to_all", "direct", payload, ranks_per_node)
        each = [_cost(work, protocol, ranks_per_node, network) for protocol in protocols]
        costs.append(min(each, key=lambda cost: exclusive_seconds(cost, ranks_per_node, network)))
    return costs


def _direct_loads(
    tables: NDArray[np.float64], ranks_per_node: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the fields of ``_Load`` of each exchange, where a rank sends all in one round."""
    node_of = np.repeat(np.arange(len(ranks_per_node)), ranks_per_node)
    first = np.append(0, np.cumsum(ranks_per_node)[:-1])
    same = node_of[:, None] == node_of
    inside = tables * (same & ~np.eye(len(node_of), dtype=bool))
    between = tables * ~same
    nodes, users = between, between > 0.0
    sums, messages, senders = [], [], []
    for axis in (1, 2):
        sums.append(np.add.reduceat(nodes.sum(3 - axis), first, axis=1).max(1))
        messages.append(np.add.reduceat(users.sum(3 - axis), first, axis=1).max(1))
        senders.append(np.add.reduceat(users.any(3 - axis).astype(np.int64), first, axis=1).max(1))
    ports = inside > 0.0
    return (
        np.maximum(inside.sum(1).max(1), inside.sum(2).max(1)),
        np.maximum(ports.sum(1).max(1), ports.sum(2).max(1)),
        np.maximum(*sums),
        np.maximum(*messages),
        np.maximum(1, np.maximum(*senders)),
    )


@lru_cache(maxsize=16)
def _exchange(algorithm: str, ranks_per_node: tuple[int, ...]) -> StepList:
    return collective_steps("all_to_all", algorithm, ranks_per_node)


def split_bytes(num_bytes: int, num_chunks: int) -> tuple[int, ...]:
    """Return chunk sizes that add up to num_bytes and differ by at most one byte, larger ones first."""
    size, larger = divmod(num_bytes, num_chunks)
    return (size + 1,) * larger + (size,) * (num_chunks - larger)


def _sent(case: StepList, chunk_bytes: Ints, node_of: Ints) -> "_Sent":
    """Return the messages of a step list with these chunk sizes; those without bytes only of a barrier."""
    columns = case.columns
    source, target, first = columns.source, columns.target, columns.first_chunk
    sizes = chunk_bytes[columns.chunks]
    size = np.add.reduceat(sizes, first) if len(first) else sizes
    sent = _Sent(size, source, target, node_of[source], node_of[target], columns.round, columns.reduces)
    return sent if case.kind == "barrier" else sent.only(size > 0)


def _load(sent: "_Sent") -> _Load:
    crosses = sent.source_node != sent.target_node
    inside, between = sent.only(~crosses), sent.only(crosses)
    ports, nodes = (inside.source, inside.target), (between.source_node, between.target_node)
    pairs = zip(nodes, (between.source, between.target), strict=True)
    users = [_nodes_of_users(*pair) for pair in pairs]
    return _Load(
        max(_busiest(side, inside.size) for side in ports),
        max(_most(side) for side in ports),
        max(_busiest(side, between.size) for side in nodes),
        max(_most(side) for side in nodes),
        max(1, *(_most(side) for side in users)),
    )


def _nodes_of_users(nodes: Ints, ranks: Ints) -> Ints:
    """Return the node of each rank that is named, once for a rank."""
    node_of = np.full(int(ranks.max(initial=-1)) + 1, -1, dtype=np.int64)
    node_of[ranks] = nodes
    return node_of[node_of >= 0]


def _busiest(where: Ints, num_bytes: Ints) -> int:
    """Return the most bytes at one place."""
    total = np.zeros(int(where.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(total, where, num_bytes)
    return int(total.max())


def _most(where: Ints) -> int:
    """Return the largest number of entries at one place."""
    return int(np.bincount(where).max(initial=0))


def _busiest_reduction(sent: "_Sent") -> float:
    added = sent.only(sent.reduces)
    return float(_busiest(added.target, added.size))


def _cost(
    work: _Work, protocol: Protocol, ranks_per_node: tuple[int, ...], network: NetworkParameters
) -> CollectiveCost:
    port_s = protocol.port_overhead / network.intra_bandwidth_bytes_per_s
    nic_s = protocol.wire_overhead / network.inter_bandwidth_bytes_per_s
    adapters = network.adapters(ranks_per_node)
    message = work.kind == "all_to_all"
    latency_s = network.launch_latency_s + protocol.base_latency_s
    own_s = protocol.own_share * work.own_bytes * port_s
    wire_s, turns_s = protocol.wire_overhead / network.intra_bandwidth_bytes_per_s, 0.0
    for index, load in enumerate(work.rounds):
        ports = (
            load.port_bytes * port_s
            + (0.0 if index else own_s)
            + message * load.port_messages * network.intra_message_s
        )
        nics = load.nic_bytes * nic_s + message * load.nic_messages * network.inter_message_s
        used = min(adapters, load.nic_users)
        latency_s += max(ports, nics / used)
        turns_s += max(load.port_bytes * wire_s, load.nic_bytes * nic_s / used)
        between = load.nic_messages > 0
        latency_s += network.inter_latency_s + protocol.inter_hop_s if between else 0.0
        latency_s += 0.0 if between else network.intra_latency_s + protocol.intra_hop_s
    port_bytes, nic_bytes = (
        work.total.port_bytes * protocol.wire_overhead,
        work.total.nic_bytes * protocol.wire_overhead,
    )
    sent_s = max(port_bytes / network.intra_bandwidth_bytes_per_s, work.total.nic_bytes * nic_s / adapters)
    return CollectiveCost(
        work.algorithm,
        latency_s - sent_s,
        port_bytes,
        nic_bytes,
        work.reduced_bytes,
        protocol.wire_overhead,
        turns_s - sent_s,
    )
