"""How a draft's guesses become a tree, depth by depth: from fixed ranks, or from the draft's own probabilities."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.serving.decoding.draft_tree import DraftTree
from sim.serving.decoding.tree import Path

Floats = NDArray[np.float64]


class Node(Struct, frozen=True):
    """A node of a growing tree. ``path``: ranks of its guesses from the root on; ``joint``: their probability."""

    index: int
    path: Path
    token: int
    joint: float


class Guess(Struct, frozen=True):
    """A child that a node gets: the ``rank``-th likeliest token after it. ``joint``: with all guesses above it."""

    parent: Node
    rank: int
    token: int
    joint: float


class Growth(Protocol):
    """A rule for the children of a depth's nodes."""

    def children(self, frontier: Sequence[Node], chances: Floats, left: int) -> Sequence[Guess]:
        """Return guesses after the nodes of a depth. ``chances``: the draft's probabilities [frontier, vocabulary].

        ``left``: nodes that the tree may still have.
        """


class FixedRanks(Struct, frozen=True):
    """The same tree at every step: a set of paths of ranks (Cai et al. 2024, Medusa)."""

    paths: frozenset[Path]

    def children(self, frontier: Sequence[Node], chances: Floats, left: int) -> Sequence[Guess]:
        """Return the children that stand in the tree."""
        del left
        most = 1 + max((path[-1] for path in self.paths), default=0)
        found = []
        for node, row in zip(frontier, chances, strict=True):
            for rank, token in enumerate(likeliest(row, most)):
                if (*node.path, rank) in self.paths:
                    found.append(Guess(node, rank, token, node.joint * float(row[token])))
        return found


class ByConfidence(Struct, frozen=True):
    """A tree that the draft's probabilities shape anew at each step (Xiao et al. 2024, Clover).

    After each node its likeliest tokens are candidates until they have ``top_p`` of the probability together; those
    below ``least`` of the best one are dropped. Of a depth's candidates the likeliest paths stay.
    """

    top_p: float = 0.8
    least: float = 0.25

    def children(self, frontier: Sequence[Node], chances: Floats, left: int) -> Sequence[Guess]:
        """Return the likeliest candidates of a depth."""
        candidates = []
        for node, row in zip(frontier, chances, strict=True):
            before = 0.0
            for rank, token in enumerate(likeliest(row, left)):
                chance = float(row[token])
                if before >= self.top_p or chance < self.least * float(row.max()):
                    break
                before += chance
                candidates.append(Guess(node, rank, token, node.joint * chance))
        return sorted(candidates, key=lambda guess: -guess.joint)[:left]


def likeliest(row: Floats, count: int) -> Iterable[int]:
    """Return the likeliest tokens, first the likeliest; of equal ones the lower token first."""
    found: list[int] = np.argsort(-row, kind="stable")[:count].tolist()
    return found


def grown_tree(
    root: int, growth: Growth, num_depths: int, num_nodes: int, guess: Callable[[int, Sequence[Node]], Floats]
) -> tuple[DraftTree, tuple[Node, ...]]:
    """Return a tree below a root, of at most so many depths and nodes, and its nodes.

    ``guess(depth, frontier)``: the draft's probabilities after each of these nodes [frontier, vocabulary].
    """
    nodes = [Node(0, (), root, 1.0)]
    parents, frontier = [-1], nodes[:1]
    for depth in range(num_depths):
        left = num_nodes + 1 - len(nodes)
        if not frontier or left < 1:
            break
        chosen = growth.children(frontier, guess(depth, frontier), left)
        frontier = []
        for child in chosen:
            node = Node(len(nodes), (*child.parent.path, child.rank), child.token, child.joint)
            nodes.append(node)
            parents.append(child.parent.index)
            frontier.append(node)
    return DraftTree(tuple(node.token for node in nodes), tuple(parents)), tuple(nodes)
