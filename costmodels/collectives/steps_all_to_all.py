"""Step lists of all_to_all. Chunk s·g + t goes from rank s to rank t; a rank's chunk for itself is not sent.

Chunks may have different sizes: a step list states the chunks of each message, not their sizes.
"""

from collections import defaultdict
from itertools import accumulate

from costmodels.collectives.steps import Step, StepList, step_list


def all_to_all_direct(num_ranks: int) -> StepList:
    """Return one round in which every rank sends a chunk to every other rank (NCCL: grouped send and recv)."""
    g = num_ranks
    steps = (Step(s, t, (s * g + t,), False, 0) for s in range(g) for t in range(g) if s != t)
    return step_list("all_to_all", g, g * g, steps)


def all_to_all_pairwise(num_ranks: int) -> StepList:
    """Return g-1 rounds; in round i rank r sends to rank r+i and receives from rank r-i (Thakur et al. 2005)."""
    g = num_ranks
    steps = (Step(r, (r + i) % g, (r * g + (r + i) % g,), False, i - 1) for i in range(1, g) for r in range(g))
    return step_list("all_to_all", g, g * g, steps)


def all_to_all_bruck(num_ranks: int) -> StepList:
    """Return ceil(log2 g) rounds. In round k rank r sends to rank r+2^k the chunks whose distance has bit k.

    A chunk with the distance d between its source and target makes one hop for each set bit of d, lowest bit first
    (Bruck et al. 1997).
    """
    g = num_ranks
    steps = []
    for k in range((g - 1).bit_length()):
        ways = [d for d in range(1, g) if d >> k & 1]
        for r in range(g):
            sources = ((r - d % (1 << k)) % g for d in ways)
            chunks = tuple(s * g + (s + d) % g for s, d in zip(sources, ways, strict=True))
            steps.append(Step(r, (r + (1 << k)) % g, chunks, False, k))
    return step_list("all_to_all", g, g * g, steps)


def all_to_all_hierarchical(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return two rounds: inside the node to the rank with the target's local rank, then to the target.

    This is Tutel's 2DH (custom_kernel.cpp, nccl_all_to_all_2d_async). If nodes have different numbers of ranks, a chunk
    for local rank k passes through local rank k modulo the number of ranks of its source's node.
    """
    places, g = _places(ranks_per_node), sum(ranks_per_node)
    first: dict[tuple[int, int], list[int]] = defaultdict(list)
    second: dict[tuple[int, int], list[int]] = defaultdict(list)
    for s, (node, start, count) in enumerate(places):
        for t, (to_node, to_start, _) in enumerate(places):
            through = start + (t - to_start) % count
            if through != s:
                first[s, through].append(s * g + t)
            if to_node != node:
                second[through, t].append(s * g + t)
    later = 1 if first else 0
    steps = [Step(s, t, tuple(chunks), False, 0) for (s, t), chunks in first.items()]
    steps += [Step(s, t, tuple(chunks), False, later) for (s, t), chunks in second.items()]
    return step_list("all_to_all", g, g * g, steps)


def all_to_all_leader(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return three rounds: whole buffers to each node's leader, an exchange among leaders, and buffers to ranks.

    This is HetuMoE's (src/communication/mpi_nccl_communication.cu). The leader of a node is its first rank. Chunks
    within a node also go through the leader, even a rank's chunk for itself.
    """
    places, g = _places(ranks_per_node), sum(ranks_per_node)
    gather, scatter = [], []
    between: dict[tuple[int, int], list[int]] = defaultdict(list)
    for s, (node, leader, _) in enumerate(places):
        if s != leader:
            gather.append(Step(s, leader, tuple(range(s * g, (s + 1) * g)), False, 0))
            scatter.append(Step(leader, s, tuple(range(s, g * g, g)), False, 2))
        for t, (to_node, to_leader, _) in enumerate(places):
            if to_node != node:
                between[leader, to_leader].append(s * g + t)
    exchange = [Step(s, t, tuple(chunks), False, 1) for (s, t), chunks in between.items()]
    steps = [*gather, *exchange, *scatter]
    number = {old: new for new, old in enumerate(sorted({step.round for step in steps}))}
    return step_list("all_to_all", g, g * g, (step._replace(round=number[step.round]) for step in steps))


def _places(ranks_per_node: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return node, first rank of the node and number of ranks there, of every rank."""
    ends = accumulate(ranks_per_node)
    return [
        (node, end - count, count)
        for node, (end, count) in enumerate(zip(ends, ranks_per_node, strict=True))
        for _ in range(count)
    ]
