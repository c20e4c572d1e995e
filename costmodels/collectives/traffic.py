"""Closed forms: the bytes and hops of every algorithm, before a protocol is chosen.

Ranks are numbered node by node. Payload n, g ranks, N nodes, G ranks in the largest node, p the largest power of two
up to g, a the largest that divides every node's ranks (p in a single node); [x] is 1 where x holds, else 0.

| algorithm                | busiest port              | busiest node's adapters   | hops                  |
|--------------------------|---------------------------|---------------------------|-----------------------|
| all_reduce ring          | 2(g-1)/g n                | 2(g-1)/g n                | 2(g-1)                |
| - tree                   | 2n / 0.92                 | 2n / 0.92                 | 2(G-1) + 2 log2 N     |
| - in_switch              | (1+1/g) n                 | 0                         | 2                     |
| - collnet_direct         | 2(G-1)/G n                | n                         | 2 + 1                 |
| - collnet_chain          | 2(G-1)/G n                | n                         | 2(G-1) + 1            |
| - halving_doubling       | 2(a-1)/a n + [N=1, g>p] n | 2(1/a-1/p) G n + folded n | 2 log2 p + 2[g>p]     |
| - direct                 | 2(G-1)/g n                | 2G(g-G)/g n               | 2                     |
| - hierarchical           | 2(G-1)/G n                | 2(N-1)/N n (tree: 2n)     | 2 + 2(N-1) (2 log2 N) |
| all_gather ring          | (g-1)/g n                 | (g-1)/g n                 | g-1                   |
| - direct                 | (G-1)/g n                 | G(g-G)/g n                | 1                     |
| - recursive, powers of 2 | (G-1)/G n                 | (N-1)/N n                 | log2 g                |
| - bruck                  | (g-1)/g n in one node     | by distance               | ceil(log2 g)          |
| - hierarchical           | (G-1)/G n                 | (N-1)/N n                 | 2                     |
| - collnet_direct         | (G-1)/G n                 | (N-1)/N n                 | 2 + 1                 |
| reduce_scatter           | as all_gather, no bruck   | as all_gather             | as all_gather         |
| broadcast ring           | n                         | n                         | g-1                   |
| - tree                   | ceil(log2 G) n            | ceil(log2 N) n            | ceil log2 G + log2 N  |
| - store_forward          | n, g-1 times in series    | n                         | g-1                   |
| reduce                   | as broadcast              | as broadcast              | as broadcast          |
| all_to_all direct        | (G-1)/g n                 | G(g-G)/g n                | 1                     |
| - pairwise               | (G-1)/g n                 | G(g-G)/g n                | g-1                   |
| - bruck                  | n/g per set bit, 1 .. g-1 | by distance               | ceil(log2 g)          |
| - hierarchical           | (G-1)/G n                 | G(N-1)/N n                | 2                     |
| - leader                 | (G-1) n, in and out       | G(N-1)/N n, one adapter   | 3                     |
| barrier dissemination    | 0                         | 0                         | ceil(log2 g)          |

n: full tensor (all_reduce, broadcast, reduce), gathered output, un-scattered input, one rank's send buffer
(all_to_all). The ring visits the ranks node by node, so it leaves each node once. In one node, with one rank per
node, and in equal nodes of a power of two ranks these are exactly the bytes of the step lists (the tree sends fewer);
recursive and Bruck's algorithms on other nodes are charged no less than the steps of any one node.

Sources: Thakur et al. 2005 (ring, recursive doubling and halving, pairwise); Bruck et al. 1997; Sanders et al. 2009
(double binary tree); Klenk et al. 2020 (in-switch: every rank supplies its n and multicasts its reduced n/g, as NCCL's
NVLS does); NCCL, src/graph/tuning.cc (a chain inside nodes, trees between nodes; CollNet's hops); HetuMoE and Tutel
(hierarchical); Graham et al. 2016, Scalable Hierarchical Aggregation Protocol (SHARP), COM-HPC, and 2020, SHARP
Streaming-Aggregation, ISC (collnet: what the network's switches reduce, each node sends once and receives once).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class Traffic(Struct, frozen=True, kw_only=True):
    """Bytes, hops and messages of an algorithm; ``reduced_bytes``: bytes that the busiest rank adds to its own.

    ``in_series``: the links inside nodes and the adapters take turns; else they work at the same time.
    ``waiting_port_bytes`` and ``waiting_nic_bytes``: other transfers that the busiest one waits for. ``one_adapter``:
    every node uses one adapter. ``own_bytes``: a rank's own share of the payload, if it passes through the rank's
    engine (see ``Protocol``). ``bandwidth_fraction``: the fraction of a link's rate that the algorithm uses; the bytes
    include the unused rest. ``fan``: transfers that a rank starts one after the other, beyond the first of each hop.
    """

    port_bytes: float = 0.0
    nic_bytes: float = 0.0
    intra_hops: float = 0.0
    inter_hops: float = 0.0
    reduced_bytes: float = 0.0
    in_series: bool = False
    waiting_port_bytes: float = 0.0
    waiting_nic_bytes: float = 0.0
    port_messages: int = 0
    nic_messages: int = 0
    one_adapter: bool = False
    own_bytes: float = 0.0
    bandwidth_fraction: float = 1.0
    fan: float = 0.0


TrafficForm = Callable[[float, tuple[int, ...]], Traffic]

TREE_BANDWIDTH_FRACTION: Final = 0.92
"""NCCL, src/graph/tuning.cc: bus bandwidth of the tree algorithm relative to the ring's."""


# --- what NCCL uses ------------------------------------------------------------------------------------------------


def _ring_passes(passes: int, *, reducing: bool) -> TrafficForm:
    """Return the traffic of a ring that ``passes`` times sends (g-1)/g of the payload over g-1 hops."""

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
        share = (ranks - 1) / ranks * num_bytes
        inter = passes * (nodes - 1)
        return Traffic(
            port_bytes=passes * share if max(ranks_per_node) > 1 else 0.0,
            nic_bytes=passes * share if nodes > 1 else 0.0,
            intra_hops=passes * (ranks - 1) - inter,
            inter_hops=inter,
            reduced_bytes=share if reducing else 0.0,
            own_bytes=num_bytes / ranks,
        )

    return traffic


def _double_binary_tree(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of NCCL's tree: a chain inside each node, two binary trees over the nodes.

    Charged as NCCL's own tuner does: n up and n down at 0.92 of the bandwidth, on two nodes as well. (There the
    wires carry n each way only, but measured times of large payloads are the ring's: nccl-tests issue 152,
    92 GB/s of bus bandwidth on 4 x 25 GB/s, where half the bytes would show as 175 GB/s.)
    """
    nodes, most = len(ranks_per_node), max(ranks_per_node)
    sent = 2.0 * num_bytes / TREE_BANDWIDTH_FRACTION
    return Traffic(
        port_bytes=sent if most > 1 else 0.0,
        nic_bytes=sent if nodes > 1 else 0.0,
        intra_hops=2.0 * (most - 1),
        inter_hops=2.0 * math.log2(nodes),
        reduced_bytes=((1 if most > 1 else 0) + min(1.0, (nodes - 1) / 2)) * num_bytes,
        bandwidth_fraction=TREE_BANDWIDTH_FRACTION,
    )


def _in_switch(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of a reduction inside the node's switch: n to the switch, the reduced n/g to all ranks."""
    return Traffic(port_bytes=(1 + 1 / ranks_per_node[0]) * num_bytes, intra_hops=2.0)


def _collnet_all_reduce(*, chain: bool) -> TrafficForm:
    """Return the traffic of a reduction in the network's switches, of equal nodes, over all of a node's members.

    Inside nodes, members first bring each part to its owner, along a chain or at once, and get the result from it.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        most = ranks_per_node[0]
        inside = (most - 1) / most * num_bytes
        return Traffic(
            port_bytes=2 * inside,
            nic_bytes=float(num_bytes),
            intra_hops=2.0 * (most - 1 if chain else min(1, most - 1)),
            inter_hops=1.0,
            reduced_bytes=inside,
            fan=0.0 if chain else 2.0 * (most - 1),
        )

    return traffic


def _collnet_gather(*, reducing: bool) -> TrafficForm:
    """Return the traffic of a gather, in which each chunk enters the network once and goes to every other node.

    Or reverse.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        nodes, most = len(ranks_per_node), ranks_per_node[0]
        inside = (most - 1) / most * num_bytes
        return Traffic(
            port_bytes=inside,
            nic_bytes=(nodes - 1) / nodes * num_bytes,
            intra_hops=2.0 * min(1, most - 1),
            inter_hops=1.0,
            reduced_bytes=inside + num_bytes / sum(ranks_per_node) if reducing else 0.0,
            fan=2.0 * (most - 1),
        )

    return traffic


# --- exchanges by all with all -------------------------------------------------------------------------------------


def _direct(passes: int, *, reducing: bool = False, messages: bool = False, rounds: bool = False) -> TrafficForm:
    """Return the traffic of every rank sending n/g to every other rank, at once or (``rounds``) one by one."""

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        ranks, most = sum(ranks_per_node), max(ranks_per_node)
        crossing = max(count * (ranks - count) for count in ranks_per_node)
        intra, inter = _hops(passes * (ranks - 1 if rounds else 1), ranks_per_node)
        return Traffic(
            port_bytes=passes * (most - 1) / ranks * num_bytes,
            nic_bytes=passes * crossing / ranks * num_bytes,
            intra_hops=intra,
            inter_hops=inter,
            reduced_bytes=(ranks - 1) / ranks * num_bytes if reducing else 0.0,
            port_messages=most - 1 if messages else 0,
            nic_messages=crossing if messages else 0,
            own_bytes=num_bytes / ranks,
        )

    return traffic


def _bruck_all_gather(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of Bruck's rounds: in round k each rank sends 2^k chunks, or the rest, over 2^k ranks."""
    ranks = sum(ranks_per_node)
    rounds = [(1 << k, min(1 << k, ranks - (1 << k))) for k in range((ranks - 1).bit_length())]
    return _jumps(num_bytes, ranks_per_node, rounds)


def _bruck_all_to_all(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of Bruck's rounds: over 2^k ranks go the chunks whose distance has bit k."""
    ranks = sum(ranks_per_node)
    rounds = [
        (1 << k, (ranks >> (k + 1) << k) + max(0, ranks % (2 << k) - (1 << k))) for k in range((ranks - 1).bit_length())
    ]
    return _jumps(num_bytes, ranks_per_node, rounds, messages=True)


def _jumps(
    num_bytes: float, ranks_per_node: tuple[int, ...], rounds: list[tuple[int, int]], *, messages: bool = False
) -> Traffic:
    """Return the traffic of rounds (distance, chunks of n/g) in which every rank sends over the same distance.

    In a node with G ranks, min(G, g - G, distance, g - distance) ranks send out of the node.
    """
    ranks, most = sum(ranks_per_node), max(ranks_per_node)
    widest = max(min(count, ranks - count) for count in ranks_per_node)
    leaving = [min(widest, distance, ranks - distance) for distance, _ in rounds]
    inside = [chunks for out, (_, chunks) in zip(leaving, rounds, strict=True) if out < most]
    crossing = sum(out * chunks for out, (_, chunks) in zip(leaving, rounds, strict=True))
    intra, inter = _hops(len(rounds), ranks_per_node)
    return Traffic(
        port_bytes=sum(inside) / ranks * num_bytes,
        nic_bytes=crossing / ranks * num_bytes,
        intra_hops=intra,
        inter_hops=inter,
        port_messages=len(inside) if messages else 0,
        nic_messages=sum(leaving) if messages else 0,
    )


# --- recursive halving and doubling --------------------------------------------------------------------------------


def _halving_doubling(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of recursive halving, near partners first, then recursive doubling.

    Ranks beyond the power of two send their vector to a partner before, and receive the sum from it after.
    """
    ranks, most = sum(ranks_per_node), max(ranks_per_node)
    power, inside = _powers(ranks_per_node)
    folded = ranks - power
    intra, inter = _recursive_hops(ranks_per_node, 2)
    single = len(ranks_per_node) == 1
    fold = min(1 if single else most, folded)
    port = 2 * (1 - 1 / inside) + (fold if single else 0)
    nic = 0.0 if single else 2 * most * (1 / inside - 1 / power) + fold
    return Traffic(
        port_bytes=port * num_bytes,
        nic_bytes=nic * num_bytes,
        intra_hops=intra,
        inter_hops=inter,
        reduced_bytes=(1 - 1 / power + (1 if folded else 0)) * num_bytes,
        in_series=True,
        waiting_port_bytes=float(fold * num_bytes) if single else 0.0,
        waiting_nic_bytes=0.0 if single else float(fold * num_bytes),
    )


def _recursive(*, reducing: bool) -> TrafficForm:
    """Return the traffic of recursive doubling, far partners first, or of its reverse, recursive halving.

    At distance d the busiest rank sends every chunk whose number differs from its own by a multiple of 2d. At the end a
    folded rank receives all chunks but its own.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        ranks, most = sum(ranks_per_node), max(ranks_per_node)
        power, inside = _powers(ranks_per_node)
        folded = ranks - power
        distances = [1 << k for k in range(power.bit_length() - 1)]
        near = sum(-(-ranks // (2 * d)) for d in distances if d < inside)
        far = sum(-(-ranks // (2 * d)) for d in distances if d >= inside)
        intra, inter = _recursive_hops(ranks_per_node, 1)
        single = len(ranks_per_node) == 1
        fold = min(1 if single else most, folded)
        out = (ranks - 1) if folded else 0
        return Traffic(
            port_bytes=(near + (fold * out if single else 0)) / ranks * num_bytes,
            nic_bytes=0.0 if single else (most * far + fold * out) / ranks * num_bytes,
            intra_hops=intra,
            inter_hops=inter,
            reduced_bytes=(near + far + out) / ranks * num_bytes if reducing else 0.0,
            in_series=True,
            waiting_port_bytes=fold / ranks * num_bytes if single else 0.0,
            waiting_nic_bytes=0.0 if single else fold / ranks * num_bytes,
        )

    return traffic


# --- hierarchical --------------------------------------------------------------------------------------------------


def _hierarchical_all_reduce(*, tree: bool) -> TrafficForm:
    """Return the traffic of a direct exchange inside nodes around a ring or double tree over nodes.

    The number of parts is the number of ranks of the smallest node. Every node has an owner of each part.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        nodes, most, owners = len(ranks_per_node), max(ranks_per_node), min(ranks_per_node)
        part = num_bytes / owners
        between = min(1.0, nodes / 4) if tree else (nodes - 1) / nodes
        added = min(1.0, (nodes - 1) / 2) if tree else between
        return Traffic(
            port_bytes=(most - 1 + owners - 1) * part,
            nic_bytes=2 * between * num_bytes if nodes > 1 else 0.0,
            intra_hops=2.0 if most > 1 else 0.0,
            inter_hops=2.0 * ((nodes - 1).bit_length() if tree else nodes - 1),
            reduced_bytes=(most - 1 + added) * part,
            in_series=True,
            waiting_port_bytes=(most - owners) * part,
        )

    return traffic


def _hierarchical_gather(*, reducing: bool) -> TrafficForm:
    """Return the traffic of a gather that sends each chunk once per node, then to all ranks there; or its reverse."""

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
        sizes = Counter(ranks_per_node)
        port = nic = reduced = 0
        for count in sizes:
            others = sizes - Counter([count])
            most = 1 + sum(times * -(-other // count) for other, times in others.items())
            least = 1 + sum(times * (other // count) for other, times in others.items())
            port = max(port, most * (count - 1), ranks - least) if count > 1 else port
            nic = max(nic, count * (nodes - 1), ranks - count) if nodes > 1 else 0
            reduced = max(reduced, most * (count - 1) + nodes - 1)
        return Traffic(
            port_bytes=port / ranks * num_bytes,
            nic_bytes=nic / ranks * num_bytes,
            intra_hops=1.0 if port else 0.0,
            inter_hops=1.0 if nic else 0.0,
            reduced_bytes=reduced / ranks * num_bytes if reducing else 0.0,
            in_series=True,
        )

    return traffic


def _hierarchical_all_to_all(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of an exchange inside nodes by the target's local rank, then between equal local ranks (2DH).

    A rank forwards the chunks for local ranks that equal its own modulo the number of ranks of its node. It keeps the
    chunks for its own local rank.
    """
    ranks = sum(ranks_per_node)
    sizes = Counter(ranks_per_node)
    port = nic = messages = 0
    for count in sizes:
        most = sum(times * -(-other // count) for other, times in sizes.items())
        least = sum(times * (other // count) for other, times in sizes.items())
        if count > 1:
            port = max(port, most * (count - 1), ranks - least)
        nic = max(nic, count * (ranks - count))
        messages = max(messages, ranks - count, count * (len(ranks_per_node) - 1))
    return Traffic(
        port_bytes=port / ranks * num_bytes,
        nic_bytes=nic / ranks * num_bytes,
        intra_hops=1.0 if port else 0.0,
        inter_hops=1.0 if nic else 0.0,
        in_series=True,
        port_messages=max(ranks_per_node) - 1,
        nic_messages=messages,
    )


def _leader_all_to_all(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the traffic of whole buffers to a leader per node, an exchange among leaders, and buffers back."""
    ranks, nodes, most = sum(ranks_per_node), len(ranks_per_node), max(ranks_per_node)
    gathered = (most - 1.0) * num_bytes
    return Traffic(
        port_bytes=gathered,
        nic_bytes=max(count * (ranks - count) for count in ranks_per_node) / ranks * num_bytes,
        intra_hops=2.0 if most > 1 else 0.0,
        inter_hops=1.0 if nodes > 1 else 0.0,
        in_series=True,
        waiting_port_bytes=gathered,
        port_messages=2 * (most - 1),
        nic_messages=nodes - 1,
        one_adapter=True,
    )


# --- one to all, all to one ----------------------------------------------------------------------------------------


def _chain(*, pipelined: bool, reducing: bool) -> TrafficForm:
    """Return the traffic of a chain.

    Pipelined: so many chunks that filling the pipeline costs only latency. Otherwise: one rank after the other.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
        return Traffic(
            port_bytes=float(num_bytes) if ranks > nodes else 0.0,
            nic_bytes=float(num_bytes) if nodes > 1 else 0.0,
            intra_hops=ranks - nodes,
            inter_hops=nodes - 1,
            reduced_bytes=float(num_bytes) if reducing else 0.0,
            in_series=not pipelined,
            waiting_port_bytes=0.0 if pipelined else max(0, ranks - nodes - 1) * num_bytes,
            waiting_nic_bytes=0.0 if pipelined else max(0, nodes - 2) * num_bytes,
        )

    return traffic


def _binomial_tree(*, reducing: bool) -> TrafficForm:
    """Return the traffic of a binomial tree: every round doubles the number of ranks with the vector.

    Rounds between nodes come first, then rounds inside nodes.
    """

    def traffic(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
        inside = (max(ranks_per_node) - 1).bit_length()
        between = (len(ranks_per_node) - 1).bit_length()
        return Traffic(
            port_bytes=float(inside * num_bytes),
            nic_bytes=float(between * num_bytes),
            intra_hops=inside,
            inter_hops=between,
            reduced_bytes=float((inside + between) * num_bytes) if reducing else 0.0,
            in_series=True,
        )

    return traffic


def _dissemination(num_bytes: float, ranks_per_node: tuple[int, ...]) -> Traffic:
    """Return the hops of a barrier in ceil(log2 g) rounds; its messages have no size."""
    intra, inter = _hops((sum(ranks_per_node) - 1).bit_length(), ranks_per_node)
    return Traffic(port_bytes=float(num_bytes), intra_hops=intra, inter_hops=inter)


# --- parts ---------------------------------------------------------------------------------------------------------


def _hops(rounds: int, ranks_per_node: tuple[int, ...]) -> tuple[float, float]:
    """Return hops inside and between nodes. On several nodes every round has a message between nodes."""
    return (float(rounds), 0.0) if len(ranks_per_node) == 1 else (0.0, float(rounds))


def _powers(ranks_per_node: tuple[int, ...]) -> tuple[int, int]:
    """Return the largest power of two up to g, and the largest whose aligned blocks of ranks all lie inside nodes."""
    power = 1 << (sum(ranks_per_node).bit_length() - 1)
    if len(ranks_per_node) == 1:
        return power, power
    common = math.gcd(*ranks_per_node)
    return power, common & -common


def _recursive_hops(ranks_per_node: tuple[int, ...], passes: int) -> tuple[float, float]:
    """Return hops inside and between nodes of recursive doubling, plus two hops if ranks are folded."""
    power, inside = _powers(ranks_per_node)
    near = passes * (inside.bit_length() - 1)
    far = passes * (power.bit_length() - inside.bit_length())
    folds = 2 if sum(ranks_per_node) > power else 0
    return (near + folds, far) if len(ranks_per_node) == 1 else (near, far + folds)


TRAFFIC: Final[Mapping[str, Mapping[str, TrafficForm]]] = MappingProxyType(
    {
        "all_reduce": {
            "ring": _ring_passes(2, reducing=True),
            "tree": _double_binary_tree,
            "in_switch": _in_switch,
            "collnet_direct": _collnet_all_reduce(chain=False),
            "collnet_chain": _collnet_all_reduce(chain=True),
            "halving_doubling": _halving_doubling,
            "direct": _direct(2, reducing=True),
            "hierarchical": _hierarchical_all_reduce(tree=False),
            "hierarchical_tree": _hierarchical_all_reduce(tree=True),
        },
        "all_gather": {
            "ring": _ring_passes(1, reducing=False),
            "direct": _direct(1),
            "recursive_doubling": _recursive(reducing=False),
            "bruck": _bruck_all_gather,
            "hierarchical": _hierarchical_gather(reducing=False),
            "collnet_direct": _collnet_gather(reducing=False),
        },
        "reduce_scatter": {
            "ring": _ring_passes(1, reducing=True),
            "direct": _direct(1, reducing=True),
            "recursive_halving": _recursive(reducing=True),
            "hierarchical": _hierarchical_gather(reducing=True),
            "collnet_direct": _collnet_gather(reducing=True),
        },
        "broadcast": {
            "ring": _chain(pipelined=True, reducing=False),
            "tree": _binomial_tree(reducing=False),
            "store_forward": _chain(pipelined=False, reducing=False),
        },
        "reduce": {
            "ring": _chain(pipelined=True, reducing=True),
            "tree": _binomial_tree(reducing=True),
            "store_forward": _chain(pipelined=False, reducing=True),
        },
        "all_to_all": {
            "direct": _direct(1, messages=True),
            "pairwise": _direct(1, messages=True, rounds=True),
            "bruck": _bruck_all_to_all,
            "hierarchical": _hierarchical_all_to_all,
            "leader": _leader_all_to_all,
        },
        "barrier": {
            "ring": _ring_passes(2, reducing=True),
            "tree": _double_binary_tree,
            "dissemination": _dissemination,
        },
    }
)
"""All algorithms of every collective."""

LIBRARY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "all_reduce": ("ring", "tree", "in_switch", "collnet_direct", "collnet_chain"),
        "all_gather": ("ring", "collnet_direct"),
        "reduce_scatter": ("ring", "collnet_direct"),
        "broadcast": ("ring",),
        "reduce": ("ring",),
        "all_to_all": ("direct",),
        "barrier": ("ring", "tree"),
    }
)
"""NCCL's own choices: all_to_all is grouped send and recv, a barrier an all_reduce of one element."""
