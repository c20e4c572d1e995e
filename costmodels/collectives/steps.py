"""Step lists: sender, receiver and chunk of every message, by round. Plain data; one function per algorithm.

Chunks are numbered pieces of a collective's payload, each of any size:

| kind                | chunks                                  | at the start          | at the end        |
|---------------------|-----------------------------------------|-----------------------|-------------------|
| all_reduce          | of the vector                           | all ranks: a term     | all ranks: sums   |
| reduce              | of the vector                           | all ranks: a term     | root: sums        |
| reduce_scatter      | r: the result of rank r                 | all ranks: a term     | rank r: sum of r  |
| all_gather, barrier | r: the input or arrival of rank r       | rank r: chunk r       | all ranks: all    |
| broadcast           | of the vector                           | root: all             | all ranks: all    |
| all_to_all          | s·g + t: from rank s to rank t          | rank s: its row       | rank t: a column  |

Rounds are synchronous: a round sends the values that its ranks held before it. A reducing step adds to the target's
value; another step replaces it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Step(NamedTuple):
    """A message: in ``round``, ``source`` sends ``chunks`` to ``target``, which adds them to its own if ``reduce``."""

    source: int
    target: int
    chunks: tuple[int, ...]
    reduce: bool
    round: int


class StepColumns(Struct, frozen=True):
    """The messages of a step list as columns; step i has the chunks from ``first_chunk[i]`` on of ``chunks``."""

    source: Ints
    target: Ints
    reduces: NDArray[np.bool_]
    round: Ints
    chunks: Ints
    first_chunk: Ints


class StepList(Struct, frozen=True, dict=True):
    """The steps of one collective of ``num_ranks`` ranks, by round, source and target.

    ``num_switches``: switches that compute; they are numbered after the ranks.
    """

    kind: str
    num_ranks: int
    num_chunks: int
    steps: tuple[Step, ...]
    root: int = 0
    num_switches: int = 0

    @property
    def num_rounds(self) -> int:
        """Return the number of rounds."""
        return self.steps[-1].round + 1 if self.steps else 0

    @cached_property
    def columns(self) -> StepColumns:
        """Return the steps as columns."""
        sources, targets, chunks, reduces, rounds = zip(*self.steps, strict=True) if self.steps else ((),) * 5
        first = [0, *accumulate(map(len, chunks))][:-1]
        return StepColumns(
            np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64), np.array(reduces, dtype=np.bool_),
            np.array(rounds, dtype=np.int64), np.array([*chain.from_iterable(chunks)], dtype=np.int64),
            np.array(first, dtype=np.int64),
        )  # fmt: skip


def step_list(
    kind: str, num_ranks: int, num_chunks: int, steps: Iterable[Step], root: int = 0, num_switches: int = 0
) -> StepList:
    """Return steps in order as a step list; steps without chunks are dropped."""
    ordered = sorted((step for step in steps if step.chunks), key=itemgetter(4, 0, 1))
    return StepList(kind, num_ranks, num_chunks, tuple(ordered), root, num_switches)


def relabelled(steps: Iterable[Step], ranks: Sequence[int], chunks: Sequence[int], delay: int = 0) -> list[Step]:
    """Return steps with rank r renamed ranks[r] and chunk c renamed chunks[c], ``delay`` rounds later."""
    return [
        Step(ranks[s.source], ranks[s.target], tuple(chunks[c] for c in s.chunks), s.reduce, s.round + delay)
        for s in steps
    ]


def reversed_in_time(steps: Iterable[Step], *, reduce: bool) -> list[Step]:
    """Return the steps from last to first with sources and targets swapped.

    If every rank receives a chunk once on the way from its owner, the reverse sums the chunk at its owner: all_gather
    becomes reduce_scatter, broadcast becomes reduce (Träff 2009, duality of collectives).
    """
    steps = list(steps)
    last = max((step.round for step in steps), default=0)
    return [Step(s.target, s.source, s.chunks, reduce, last - s.round) for s in steps]


# --- all_gather, reduce_scatter ------------------------------------------------------------------------------------


def all_gather_ring(num_ranks: int) -> StepList:
    """Return g-1 rounds in which every rank forwards the chunk it received last (Thakur et al. 2005)."""
    g = num_ranks
    steps = (Step(r, (r + 1) % g, ((r - s) % g,), False, s) for s in range(g - 1) for r in range(g))
    return step_list("all_gather", g, g, steps)


def reduce_scatter_ring(num_ranks: int) -> StepList:
    """Return g-1 rounds in which every rank adds its term to a chunk and forwards it (Thakur et al. 2005)."""
    g = num_ranks
    steps = (Step(r, (r + 1) % g, ((r - 1 - s) % g,), True, s) for s in range(g - 1) for r in range(g))
    return step_list("reduce_scatter", g, g, steps)


def all_gather_direct(num_ranks: int) -> StepList:
    """Return one round in which every rank sends its chunk to every other."""
    g = num_ranks
    steps = (Step(r, t, (r,), False, 0) for r in range(g) for t in range(g) if t != r)
    return step_list("all_gather", g, g, steps)


def all_gather_recursive_doubling(num_ranks: int) -> StepList:
    """Return log2 rounds in which partners at distance p/2, ..., 2, 1 exchange all that they hold.

    p is the largest power of two up to g. Rank p+i gives its chunk to rank i before, and gets all from it after
    (Thakur et al. 2005). The far partners come first, while there is little to send.
    """
    g, p = num_ranks, _power_of_two(num_ranks)
    steps = [Step(p + i, i, (p + i,), False, 0) for i in range(g - p)]
    rounds = p.bit_length() - 1
    for index in range(rounds):
        distance = p >> (index + 1)
        held = {r: tuple(range(r, g, 2 * distance)) for r in range(2 * distance)}
        steps += [Step(r, r ^ distance, held[r % (2 * distance)], False, 1 + index) for r in range(p)]
    steps += [Step(i, p + i, tuple(c for c in range(g) if c != p + i), False, 1 + rounds) for i in range(g - p)]
    return step_list("all_gather", g, g, _from_round_zero(steps))


def all_gather_bruck(num_ranks: int) -> StepList:
    """Return ceil(log2 g) rounds in which rank r sends its oldest 2^k chunks to rank r+2^k (Bruck et al. 1997)."""
    return step_list("all_gather", num_ranks, num_ranks, _dissemination(num_ranks))


def all_gather_hierarchical(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return two rounds: a chunk goes to one rank of every other node, and from there to all of that node.

    The chunk of local rank l goes to local rank l modulo the number of ranks there.
    """
    nodes, g = _nodes(ranks_per_node), sum(ranks_per_node)
    between, holds = [], {r: [r] for r in range(g)}
    for here in nodes:
        for there in nodes:
            for local, r in enumerate(here if there is not here else ()):
                between.append(Step(r, there[local % len(there)], (r,), False, 0))
                holds[there[local % len(there)]].append(r)
    inside = [Step(r, t, tuple(holds[r]), False, 1) for node in nodes for r in node for t in node if t != r]
    return step_list("all_gather", g, g, _from_round_zero([*between, *inside]))


def reduce_scatter_direct(num_ranks: int) -> StepList:
    """Return one round in which every rank sends to every other rank the term of that rank's chunk."""
    return _reduce_scatter(all_gather_direct(num_ranks))


def reduce_scatter_recursive_halving(num_ranks: int) -> StepList:
    """Return log2 rounds in which partners at distance 1, 2, ..., p/2 exchange half of their remaining chunks.

    The reverse of recursive doubling: near partners come first, with most to send.
    """
    return _reduce_scatter(all_gather_recursive_doubling(num_ranks))


def reduce_scatter_hierarchical(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return two rounds: terms are added inside every node first, then one sum per node goes to each owner."""
    return _reduce_scatter(all_gather_hierarchical(ranks_per_node))


# --- all_reduce ----------------------------------------------------------------------------------------------------


def all_reduce_ring(num_ranks: int, channels: int = 1) -> StepList:
    """Return reduce_scatter and all_gather around a ring, in each channel for its g chunks; odd channels backwards."""
    g = num_ranks
    steps: list[Step] = []
    for channel in range(channels):
        at = [r if channel % 2 == 0 else -r % g for r in range(g)]
        piece = [(channel * g + r,) for r in at]
        pairs = [(r, at[r], at[(r + 1) % g]) for r in range(g)]
        steps += [Step(s, t, piece[(r - 1 - i) % g], True, i) for i in range(g - 1) for r, s, t in pairs]
        steps += [Step(s, t, piece[(r - i) % g], False, g - 1 + i) for i in range(g - 1) for r, s, t in pairs]
    return step_list("all_reduce", g, channels * g, steps)


def all_reduce_direct(num_ranks: int) -> StepList:
    """Return two rounds: terms go to the owner of each chunk, then every owner sends its sum to all ranks."""
    g = num_ranks
    return step_list("all_reduce", g, g, _scatter_then_gather(reduce_scatter_direct(g), all_gather_direct(g)))


def all_reduce_halving_doubling(num_ranks: int) -> StepList:
    """Return recursive halving, then doubling, among p ranks, the largest power of two (Thakur et al. 2005).

    Rank p+i sends its vector to rank i before, and gets the sum from rank i after.
    """
    g, p = num_ranks, _power_of_two(num_ranks)
    everything = tuple(range(p))
    cube = _scatter_then_gather(reduce_scatter_recursive_halving(p), all_gather_recursive_doubling(p))
    steps = [Step(p + i, i, everything, True, 0) for i in range(g - p)]
    steps += [step._replace(round=step.round + 1) for step in cube]
    end = 1 + 2 * (p.bit_length() - 1)
    steps += [Step(i, p + i, everything, False, end) for i in range(g - p)]
    return step_list("all_reduce", g, p, _from_round_zero(steps))


def all_reduce_tree(ranks_per_node: tuple[int, ...], pieces: int = 1) -> StepList:
    """Return NCCL's double binary tree: a chain inside every node, two trees over the nodes, half the vector each.

    A node that is inner in one tree is a leaf in the other (Sanders et al. 2009; NCCL, src/graph/trees.cc). Each half
    goes up and down in ``pieces`` chunks, one round apart.
    """
    nodes = _nodes(ranks_per_node)
    steps: list[Step] = []
    for tree, node_parents in enumerate(double_binary_tree(len(nodes))):
        parents: dict[int, int | None] = {}
        for node, node_parent in zip(nodes, node_parents, strict=True):
            parents |= dict(zip(node[1:], node[:-1], strict=True))
            parents[node[0]] = None if node_parent is None else nodes[node_parent][0]
        for piece in range(pieces):
            steps += relabelled(_up_and_down(parents), range(len(parents)), (2 * piece + tree,), delay=piece)
    return step_list("all_reduce", sum(ranks_per_node), 2 * pieces, steps)


def all_reduce_hierarchical(
    ranks_per_node: tuple[int, ...], between: Callable[[int], StepList] = all_reduce_ring
) -> StepList:
    """Return reduce_scatter inside nodes, ``between`` for each part over nodes, and all_gather inside nodes.

    The number of parts is the number of ranks of the smallest node; local rank j of every node owns part j.
    """
    nodes = _nodes(ranks_per_node)
    inner, owners = between(len(nodes)), min(ranks_per_node)
    parts = [tuple(range(j * inner.num_chunks, (j + 1) * inner.num_chunks)) for j in range(owners)]
    gather = [Step(n[j], r, parts[j], False, 1 + inner.num_rounds) for n in nodes for j in range(owners) for r in n]
    gather = [step for step in gather if step.source != step.target]
    steps = [Step(s.target, s.source, s.chunks, True, 0) for s in gather] + gather
    for j in range(owners):
        steps += relabelled(inner.steps, [node[j] for node in nodes], parts[j], delay=1)
    return step_list("all_reduce", sum(ranks_per_node), owners * inner.num_chunks, _from_round_zero(steps))


def all_reduce_hierarchical_tree(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return the hierarchical all_reduce with a double binary tree over the nodes."""
    return all_reduce_hierarchical(ranks_per_node, lambda num_nodes: all_reduce_tree((1,) * num_nodes))


def double_binary_tree(num_nodes: int) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Return the parent of every node in each of two binary trees, None for the root.

    In the first, odd nodes are leaves and node 0 is the root. The second is its mirror image for an even number of
    nodes and shifted by one for an odd number, so that odd nodes are inner and even ones, but for one, leaves.
    """
    n = num_nodes
    first = tuple(_tree_parent(node, n) for node in range(n))
    names = [n - 1 - node if n % 2 == 0 else (node + 1) % n for node in range(n)]
    second = {names[node]: None if parent is None else names[parent] for node, parent in enumerate(first)}
    return first, tuple(second[node] for node in range(n))


# --- broadcast, reduce, barrier ------------------------------------------------------------------------------------


def broadcast_ring(num_ranks: int, root: int = 0, pieces: int = 4) -> StepList:
    """Return a chain from the root along which ``pieces`` chunks follow each other, one round apart."""
    g = num_ranks
    steps = (Step((root + i) % g, (root + i + 1) % g, (c,), False, i + c) for i in range(g - 1) for c in range(pieces))
    return step_list("broadcast", g, pieces, steps, root)


def broadcast_store_forward(num_ranks: int, root: int = 0) -> StepList:
    """Return a chain from the root along which the whole vector goes in one piece, rank after rank."""
    return broadcast_ring(num_ranks, root, pieces=1)


def broadcast_tree(ranks_per_node: tuple[int, ...], root: int = 0) -> StepList:
    """Return binomial trees, first between nodes: in each round every rank with the vector sends it to one without."""
    nodes, g = _nodes(ranks_per_node), sum(ranks_per_node)
    teams = [_cycle_to(root, list(node)) if root in node else list(node) for node in nodes]
    leaders = _cycle_to(root, [team[0] for team in teams])
    between = _binomial(leaders, 0)
    rounds = (len(nodes) - 1).bit_length()
    inside = [step for team in teams for step in _binomial(team, rounds)]
    return step_list("broadcast", g, 1, _from_round_zero([*between, *inside]), root)


def reduce_ring(num_ranks: int, root: int = 0, pieces: int = 4) -> StepList:
    """Return a chain to the root along which ``pieces`` chunks of sums follow each other."""
    return _reduce(broadcast_ring(num_ranks, root, pieces))


def reduce_store_forward(num_ranks: int, root: int = 0) -> StepList:
    """Return a chain to the root along which the whole vector is summed, rank after rank."""
    return _reduce(broadcast_store_forward(num_ranks, root))


def reduce_tree(ranks_per_node: tuple[int, ...], root: int = 0) -> StepList:
    """Return binomial trees to the root, inside nodes first, then node by node."""
    return _reduce(broadcast_tree(ranks_per_node, root))


def barrier_dissemination(num_ranks: int) -> StepList:
    """Return ceil(log2 g) rounds. Rank r sends its list of arrived ranks to rank r+2^k (Hensgen et al. 1988)."""
    return step_list("barrier", num_ranks, num_ranks, _dissemination(num_ranks))


# --- parts ---------------------------------------------------------------------------------------------------------


def _power_of_two(num_ranks: int) -> int:
    return 1 << (num_ranks.bit_length() - 1)


def _nodes(ranks_per_node: tuple[int, ...]) -> list[range]:
    """Return the ranks of each node, numbered node by node."""
    return [range(end - count, end) for end, count in zip(accumulate(ranks_per_node), ranks_per_node, strict=True)]


def _from_round_zero(steps: list[Step]) -> list[Step]:
    """Return the steps without empty rounds (no rank to fold, no second node)."""
    number = {old: new for new, old in enumerate(sorted({step.round for step in steps if step.chunks}))}
    return [step._replace(round=number[step.round]) for step in steps if step.chunks]


def _reduce_scatter(gather: StepList) -> StepList:
    return step_list("reduce_scatter", gather.num_ranks, gather.num_chunks, reversed_in_time(gather.steps, reduce=True))


def _reduce(broadcast: StepList) -> StepList:
    steps = reversed_in_time(broadcast.steps, reduce=True)
    return step_list("reduce", broadcast.num_ranks, broadcast.num_chunks, steps, broadcast.root)


def _scatter_then_gather(scatter: StepList, gather: StepList) -> list[Step]:
    return [*scatter.steps, *(step._replace(round=step.round + scatter.num_rounds) for step in gather.steps)]


def _dissemination(g: int) -> list[Step]:
    steps = []
    for k in range((g - 1).bit_length()):
        known = min(1 << k, g - (1 << k))
        for r in range(g):
            chunks = tuple((r - i) % g for i in range(known))
            steps.append(Step(r, (r + (1 << k)) % g, chunks, False, k))
    return steps


def _cycle_to(first: int, ranks: list[int]) -> list[int]:
    """Return the ranks in cyclic order, starting at ``first``."""
    start = ranks.index(first)
    return ranks[start:] + ranks[:start]


def _binomial(team: list[int], delay: int) -> list[Step]:
    """Return ceil(log2) rounds in which a team's first rank reaches all members, the far half first."""
    rounds = (len(team) - 1).bit_length()
    return [
        Step(team[i], team[i + (1 << k)], (0,), False, delay + rounds - 1 - k)
        for k in range(rounds)
        for i in range(0, len(team) - (1 << k), 2 << k)
    ]


def _tree_parent(node: int, num_nodes: int) -> int | None:
    """Return the parent in NCCL's tree: clear the lowest set bit and set the next, or only clear it at the edge."""
    if node == 0:
        return None
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return parent if parent < num_nodes else node ^ bit


def _up_and_down(parents: dict[int, int | None]) -> list[Step]:
    """Return sums going up a tree, deepest ranks first, and down again."""
    depths: dict[int, int] = {}
    for rank in parents:
        path: list[int] = []
        above: int | None = rank
        while above is not None and above not in depths:
            path.append(above)
            above = parents[above]
        base = -1 if above is None else depths[above]
        depths |= {r: base + i for i, r in enumerate(reversed(path), start=1)}
    height = max(depths.values())
    up = [Step(r, p, (0,), True, height - depths[r]) for r, p in parents.items() if p is not None]
    return up + [Step(s.target, s.source, (0,), False, height + depths[s.target]) for s in up]
