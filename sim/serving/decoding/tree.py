"""Trees of drafted tokens: how many of them a step accepts, from the hit rates of the draft.

A path ``(1, 0)`` is the second guess for the next token and then the first guess for the one after it. A tree is a set
of paths that holds every beginning of its paths. ``table[k][r]``: probability that guess r for depth k is right where
the path before it was; guesses for one depth exclude each other. At most one node of each depth is then right, so that
E[tokens of a step] = 1 + sum over nodes of the product of the rates on its path (Cai et al. 2024, Medusa).
"""

import heapq
from collections.abc import Iterable, Sequence
from math import prod

Path = tuple[int, ...]
Table = Sequence[Sequence[float]]


def path_probability(path: Path, table: Table) -> float:
    """Return the probability that all tokens of a path are right."""
    return prod(table[depth][rank] for depth, rank in enumerate(path))


def length_probabilities(tree: Iterable[Path], table: Table) -> tuple[float, ...]:
    """Return the probabilities that a step yields 1, 2, ... tokens."""
    reached = [1.0]
    for path in tree:
        reached += [0.0] * (len(path) + 1 - len(reached))
        reached[len(path)] += path_probability(path, table)
    return tuple(here - more for here, more in zip(reached, [*reached[1:], 0.0], strict=True))


def greedy_tree(table: Table, num_nodes: int) -> tuple[Path, ...]:
    """Return the best tree of so many nodes, in the order in which they were chosen; fewer where there are no more.

    Each time the likeliest path is added whose beginning and whose better guess are in the tree: the first child and
    the next sibling of each chosen path come into question. Optimal where guesses are ranked by their rates.
    """
    found: list[Path] = []
    heap: list[tuple[float, Path]] = [(-path_probability((0,), table), (0,))]
    while heap and len(found) < num_nodes:
        _, path = heapq.heappop(heap)
        found.append(path)
        neighbours: list[Path] = [(*path[:-1], path[-1] + 1)] if path[-1] + 1 < len(table[len(path) - 1]) else []
        if len(path) < len(table):
            neighbours.append((*path, 0))
        for other in neighbours:
            heapq.heappush(heap, (-path_probability(other, table), other))
    return tuple(found)


def widths(tree: Iterable[Path]) -> tuple[int, ...]:
    """Return how many nodes each depth has, from the root's on."""
    counts = [1]
    for path in tree:
        counts += [0] * (len(path) + 1 - len(counts))
        counts[len(path)] += 1
    return tuple(counts)


def ranked_rates(first: float, num_ranks: int = 10, spread: float = 0.85, decay: float = 0.65) -> tuple[float, ...]:
    """Return hit rates of the ranks of a head of which only the first is known.

    The other ranks share ``spread`` of the rest, each ``decay`` times as much as the one before (an assumption).
    """
    whole = sum(decay**rank for rank in range(num_ranks - 1))
    rest = spread * (1.0 - first) / whole
    return (first, *(rest * decay**rank for rank in range(num_ranks - 1)))
