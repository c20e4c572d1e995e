"""Step lists with a switch that adds up its inputs (Graham et al. 2016, SHARP) and multicasts.

The switch has number g, after the ranks: it holds nothing at the start and nothing is required of it at the end. All
switches of a network are one here; the topology decides which links a reduction uses. Processes have no such switch, so
these lists serve prices and proofs, and are not executed. Chunks are those of ``collectives.steps``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from costmodels.collectives.steps import Step, StepList, reversed_in_time, step_list
from costmodels.errors import CollectiveError

Builder = Callable[[tuple[int, ...]], StepList]


def all_reduce_in_switch(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return the reduction of one node's ranks in its switch (Klenk et al. 2020; NCCL's NVLS).

    Each rank supplies its terms, gets the sum of its own chunk, and multicasts it.
    """
    if len(ranks_per_node) != 1:
        raise CollectiveError(f"one node has one switch, got ranks on {len(ranks_per_node)} nodes")
    g = switch = ranks_per_node[0]
    everything = tuple(range(g))
    steps = [Step(r, switch, everything, True, 0) for r in range(g)]
    steps += [Step(switch, r, (r,), False, 1) for r in range(g)]
    steps += [Step(r, switch, (r,), False, 2) for r in range(g)]
    steps += [Step(switch, r, tuple(c for c in everything if c != r), False, 3) for r in range(g)]
    return step_list("all_reduce", g, g, steps, num_switches=1)


def all_reduce_collnet_direct(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return reduce_scatter inside nodes, a reduction of each part in the network, and all_gather inside nodes."""
    nodes, g = _equal_nodes(ranks_per_node)
    inside = [Step(r, owner, (j,), True, 0) for node in nodes for j, owner in enumerate(node) for r in node]
    up = [Step(owner, g, (j,), True, 1) for node in nodes for j, owner in enumerate(node)]
    return step_list("all_reduce", g, len(nodes[0]), _there_and_back(inside + up), num_switches=1)


def all_reduce_collnet_chain(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return a chain inside every node for each part, which ends at its owner, a reduction in the network, and back."""
    nodes, g = _equal_nodes(ranks_per_node)
    most = len(nodes[0])
    up = []
    for node in nodes:
        for j, owner in enumerate(node):
            chain = [node[(j + i) % most] for i in range(most)]
            up += [Step(chain[i + 1], chain[i], (j,), True, most - 2 - i) for i in range(most - 1)]
            up.append(Step(owner, g, (j,), True, most - 1))
    return step_list("all_reduce", g, most, _there_and_back(up), num_switches=1)


def all_gather_collnet_direct(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return a multicast of every chunk to the ranks of the same place in all nodes, and an exchange inside nodes."""
    nodes, g = _equal_nodes(ranks_per_node)
    columns = [tuple(node[j] for node in nodes) for j in range(len(nodes[0]))]
    steps = [Step(r, g, (r,), False, 0) for r in range(g) if len(nodes) > 1]
    steps += [Step(g, r, tuple(c for c in column if c != r), False, 1) for column in columns for r in column]
    steps += [Step(node[j], t, columns[j], False, 2) for node in nodes for j in range(len(node)) for t in node]
    return step_list("all_gather", g, g, (s for s in steps if s.source != s.target), num_switches=1)


def reduce_scatter_collnet_direct(ranks_per_node: tuple[int, ...]) -> StepList:
    """Return an exchange of terms inside nodes, and a reduction of other nodes' sums in the network on the way."""
    gather = all_gather_collnet_direct(ranks_per_node)
    steps = reversed_in_time(gather.steps, reduce=True)
    return step_list("reduce_scatter", gather.num_ranks, gather.num_chunks, steps, num_switches=1)


IN_NETWORK_STEPS: Final[Mapping[str, Mapping[str, Builder]]] = MappingProxyType(
    {
        "all_reduce": {
            "in_switch": all_reduce_in_switch,
            "collnet_direct": all_reduce_collnet_direct,
            "collnet_chain": all_reduce_collnet_chain,
        },
        "all_gather": {"collnet_direct": all_gather_collnet_direct},
        "reduce_scatter": {"collnet_direct": reduce_scatter_collnet_direct},
    }
)
"""All algorithms in which a switch computes, by collective."""


def _equal_nodes(ranks_per_node: tuple[int, ...]) -> tuple[list[range], int]:
    """Return the ranks of each node, and the switch's number, which is the number of ranks."""
    most = ranks_per_node[0]
    if set(ranks_per_node) != {most}:
        raise CollectiveError(f"CollNet needs as many ranks on every node, got {ranks_per_node}")
    return [range(node * most, (node + 1) * most) for node in range(len(ranks_per_node))], sum(ranks_per_node)


def _there_and_back(up: list[Step]) -> list[Step]:
    """Return sums on their way to the switch, and the results back on the reverse way."""
    up = [step for step in up if step.source != step.target]
    first = min((step.round for step in up), default=0)
    up = [step._replace(round=step.round - first) for step in up]
    rounds = max((step.round for step in up), default=-1) + 1
    down = reversed_in_time(up, reduce=False)
    return up + [step._replace(round=step.round + rounds) for step in down]
