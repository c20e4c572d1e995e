"""Flows: the bytes from each member of a collective to each other one, over all rounds, as arrays.

Flows state the ways of the traffic, not its time: ``collective_cost`` has latencies, protocols and the bytes of the
busiest port. Rings and trees run in channels, as in NCCL: one for every rank of the smallest node, so each adapter of a
node carries a part. Channel c enters a node at its c-th rank, goes around the node, and leaves from the rank before.

A double binary tree loads all nodes equally except its root and its edge. A node is an inner node of one tree and a
leaf of the other, and in both together it sends and receives twice the payload. The tree is laid out as neighbours that
exchange the payload, because most of its edges join neighbours. So it adds no classes of nodes by their place in a
tree. That is right if no two routes between nodes share a link; otherwise ``tree_flows`` has the trees themselves.

Some algorithms load links differently in each round. They are phased: a phase begins when the one before has ended, and
flows of one phase run together (``phased_flows``).
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.collectives import catalogue
from costmodels.collectives import steps as step_lists
from costmodels.collectives.network import COLLNET
from costmodels.digest import blake2b
from costmodels.errors import CollectiveError

_RING_PASSES: Final = {"all_reduce": 2, "barrier": 2, "all_gather": 1, "reduce_scatter": 1}
_CHAINS: Final = ("broadcast", "reduce")
_TOGETHER: Final = ("ring", "in_switch", "direct", *COLLNET)
"""Algorithms with one round, or with equal link loads in all rounds."""


Floats = NDArray[np.float64]


class Flows(Struct, frozen=True, eq=False, dict=True):
    """``parts[i]`` of the payload go from member ``sources[i]`` to member ``targets[i]``; each pair comes once."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    parts: NDArray[np.float64]

    @cached_property
    def ends(self) -> bytes:
        """Return a digest of who sends to whom, in this order."""
        return blake2b(np.stack([self.sources, self.targets]).tobytes()).digest()


class Phased(Struct, frozen=True, eq=False):
    """Flows that do not all run together: flow i runs in phase ``phases[i]``; a pair may come once in every phase."""

    flows: Flows
    phases: NDArray[np.int64]


@lru_cache(maxsize=4096)
def collective_flows(
    kind: str, algorithm: str, ranks_per_node: tuple[int, ...], rings: tuple[tuple[int, ...], ...] = ()
) -> Flows:
    """Return the flows of a collective whose members are numbered node by node, per byte of its payload.

    The payload is ``num_bytes`` of ``collective_cost``; for a barrier, one token. Traffic between members and the
    network's switches is no flow between members: see ``switch_parts``. ``rings``: the orders in which the rings and
    trees of one node visit its members, if not by their numbers. Raises CollectiveError for an unknown kind or
    algorithm.
    """
    num_ranks = sum(ranks_per_node)
    if algorithm == "none" or num_ranks == 1:
        return _flows({})
    if algorithm == "in_switch":
        return _neighbours(ranks_per_node, 1.0 + 1.0 / num_ranks)
    if algorithm == "ring" and kind in _RING_PASSES:
        return _neighbours(ranks_per_node, _RING_PASSES[kind] * (num_ranks - 1) / num_ranks, rings=rings)
    if algorithm == "ring" and kind in _CHAINS:
        return _chains(ranks_per_node, rings, reducing=kind == "reduce")
    if algorithm == "tree" and kind not in _CHAINS:
        return _neighbours(ranks_per_node, 1.0, back=1.0, rings=rings)
    if algorithm in COLLNET:
        return _inside_nodes(ranks_per_node, 2.0 if kind == "all_reduce" else 1.0, chain=algorithm == "collnet_chain")
    if algorithm == "direct" and kind != "barrier":
        return _everyone(num_ranks, (2.0 if kind == "all_reduce" else 1.0) / num_ranks)
    if algorithm == "pairwise":
        return _everyone(num_ranks, 1.0 / num_ranks)
    return _of_steps(kind, algorithm, ranks_per_node)


def _flows(parts: dict[tuple[int, int], float]) -> Flows:
    pairs = np.array(sorted(parts), dtype=np.int64).reshape(-1, 2)
    return Flows(pairs[:, 0], pairs[:, 1], np.array([parts[s, t] for s, t in pairs.tolist()]))


def _neighbours(
    ranks_per_node: tuple[int, ...], part: float, *, back: float = 0.0, rings: tuple[tuple[int, ...], ...] = ()
) -> Flows:
    """Return rings in which every member sends ``part`` to the next member, and ``back`` to the previous one."""
    channels = [[list(ring)] for ring in rings] or _channels(ranks_per_node)
    parts: dict[tuple[int, int], float] = defaultdict(float)
    for channel in channels:
        around = [rank for node in channel for rank in node]
        for source, target in zip(around, around[1:] + around[:1], strict=True):
            parts[source, target] += part / len(channels)
            if back:
                parts[target, source] += back / len(channels)
    return _flows(parts)


def _chains(ranks_per_node: tuple[int, ...], rings: tuple[tuple[int, ...], ...], *, reducing: bool) -> Flows:
    """Return rings cut before rank 0, which carry the payload from rank 0, or to it if ``reducing``."""
    flows = _neighbours(ranks_per_node, 1.0, rings=rings)
    kept = flows.targets != 0
    ends = (flows.sources[kept], flows.targets[kept])
    return Flows(*(ends[::-1] if reducing else ends), flows.parts[kept])


def _everyone(num_ranks: int, part: float) -> Flows:
    """Return flows of ``part`` from every member to every other member."""
    sources, targets = np.divmod(np.arange(num_ranks * num_ranks, dtype=np.int64), num_ranks)
    apart = sources != targets
    return Flows(sources[apart], targets[apart], np.full(int(apart.sum()), part))


def _inside_nodes(ranks_per_node: tuple[int, ...], passes: float, *, chain: bool) -> Flows:
    """Return ``passes`` times 1/G of the payload from every member to each other of its node.

    With ``chain``, along chains.

    A chain per part ends at its owner and starts at the next rank around the node, so all but one part pass each
    neighbour.
    """
    found, first = [], 0
    for count in ranks_per_node:
        flows = _everyone(count, passes / count)
        if chain and count > 1:
            flows = _neighbours((count,), passes / 2 * (count - 1) / count, back=passes / 2 * (count - 1) / count)
        found.append(Flows(flows.sources + first, flows.targets + first, flows.parts))
        first += count
    columns = ([getattr(flows, name) for flows in found] for name in ("sources", "targets", "parts"))
    return Flows(*(np.concatenate(column) for column in columns))


def switch_parts(kind: str, below: Floats, ranks_per_node: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the load of links in a tree of switches, up and down, per byte of payload of a CollNet collective.

    One tree per place in a node joins the members of that place in all nodes; ``below`` of them are below each link. A
    reduction carries one sum up and one down. A gather carries up the data below and down the rest; a scatter the
    reverse.
    """
    members, trees = len(ranks_per_node), ranks_per_node[0]
    if kind == "all_reduce":
        whole = np.full(len(below), 1.0 / trees)
        return whole, whole
    up, down = below / (members * trees), (members - below) / (members * trees)
    return (up, down) if kind == "all_gather" else (down, up)


@lru_cache(maxsize=512)
def phased_flows(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> Phased | None:
    """Return flows by phase, per byte of payload, or None if all run together.

    A phase is a round of the step list; the trees over nodes of ``hierarchical_tree``, a pipeline, are one phase.
    Raises CollectiveError for an unknown kind or algorithm.
    """
    pipelined_tree = algorithm == "tree" and kind not in _CHAINS
    if algorithm in {"none", *_TOGETHER} or pipelined_tree or sum(ranks_per_node) == 1:
        return None
    if algorithm == "pairwise":
        flows = _everyone(sum(ranks_per_node), 1.0 / sum(ranks_per_node))
        return Phased(flows, (flows.targets - flows.sources) % sum(ranks_per_node))
    steps = catalogue.collective_steps(kind, algorithm, ranks_per_node)
    chunk = 1.0 if kind == "barrier" else 1.0 / _chunks_of_payload(kind, steps.num_ranks, steps.num_chunks)
    phased = step_flows(steps, [chunk] * steps.num_chunks)
    if algorithm == "hierarchical_tree":
        first, last = (0, 0) if max(ranks_per_node) == 1 else (1, steps.num_rounds - 1)
        phases = np.where(phased.phases < first, 0, np.where(phased.phases < (last or steps.num_rounds), 1, 2))
        return Phased(phased.flows, phases)
    return phased


def step_flows(steps: "step_lists.StepList", chunk_bytes: Sequence[float]) -> Phased:
    """Return the bytes that a step list moves between each pair in each round, for chunks of these sizes."""
    parts = [sum(chunk_bytes[chunk] for chunk in step.chunks) for step in steps.steps]
    ends = np.array([(step.source, step.target, step.round) for step in steps.steps], dtype=np.int64).reshape(-1, 3)
    return Phased(Flows(ends[:, 0], ends[:, 1], np.array(parts, dtype=np.float64)), ends[:, 2])


@lru_cache(maxsize=512)
def tree_flows(ranks_per_node: tuple[int, ...]) -> Flows:
    """Return the flows of a double binary tree all_reduce along its real edges, in as many channels as a ring has."""
    steps = catalogue.collective_steps("all_reduce", "tree", ranks_per_node)
    channels = _channels(ranks_per_node)
    parts: dict[tuple[int, int], float] = defaultdict(float)
    for channel in channels:
        ranks = [rank for node in channel for rank in node]
        for step in steps.steps:
            pair = ranks[step.source], ranks[step.target]
            parts[pair] += len(step.chunks) / steps.num_chunks / len(channels)
    return _flows(parts)


def _of_steps(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> Flows:
    """Return a step list's flows, with chunks of one size."""
    steps = catalogue.collective_steps(kind, algorithm, ranks_per_node)
    chunk = 1.0 if kind == "barrier" else 1.0 / _chunks_of_payload(kind, steps.num_ranks, steps.num_chunks)
    parts: dict[tuple[int, int], float] = defaultdict(float)
    for step in steps.steps:
        parts[step.source, step.target] += len(step.chunks) * chunk
    return _flows(parts)


def _chunks_of_payload(kind: str, num_ranks: int, num_chunks: int) -> int:
    if num_chunks < 1:
        raise CollectiveError(f"{kind} of {num_ranks} ranks has no chunks")
    return num_chunks // num_ranks if kind == "all_to_all" else num_chunks


def _channels(ranks_per_node: tuple[int, ...]) -> list[list[list[int]]]:
    """Return, for each channel, the ranks of every node in visiting order."""
    ends = list(accumulate(ranks_per_node))
    nodes = [list(range(end - count, end)) for end, count in zip(ends, ranks_per_node, strict=True)]
    num_channels = min(ranks_per_node) if len(nodes) > 1 else 1
    return [[node[c:] + node[:c] for node in nodes] for c in range(num_channels)]
