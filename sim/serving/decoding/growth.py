"""How a draft's guesses become a tree, depth by depth: from fixed ranks, or from the draft's own probabilities."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
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

    def expanded(self, nodes: Sequence[Node], left: int) -> Sequence[Node]:
        """Return those nodes of a depth that get children. ``left``: nodes that the tree may still have."""

    @property
    def draws(self) -> bool:
        """Return whether tokens are drawn, so that a tree needs the distributions that they came from."""


class _AllExpanded:
    """Every node gets children while the tree may have more."""

    draws = False

    def expanded(self, nodes: Sequence[Node], left: int) -> Sequence[Node]:
        """Return all nodes, or none for a full tree."""
        return nodes if left > 0 else ()


@dataclass(frozen=True)
class FixedRanks(_AllExpanded):
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


@dataclass(frozen=True)
class ByConfidence(_AllExpanded):
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


@dataclass(frozen=True)
class Drawn(_AllExpanded):
    """A tree of drawn tokens: rejection sampling over it keeps the target's distribution (Miao et al. 2024, SpecInfer).

    ``widths``: how many tokens are drawn after each node of a depth, each by itself.
    """

    widths: tuple[int, ...]
    generator: np.random.Generator
    draws = True

    def children(self, frontier: Sequence[Node], chances: Floats, left: int) -> Sequence[Guess]:
        """Return the drawn tokens; where the tree is full, those drawn first."""
        depth = len(frontier[0].path)
        width = self.widths[depth] if depth < len(self.widths) else 0
        found = []
        for node, row in zip(frontier, chances, strict=True):
            for rank, token in enumerate(self.generator.choice(len(row), size=width, p=row).tolist()):
                found.append(Guess(node, rank, token, node.joint * float(row[token])))
        return found[:left]


@dataclass(frozen=True)
class Reranked:
    """A tree that is drafted wider than it is verified (Li et al. 2024, EAGLE-2).

    At each depth the ``width`` likeliest nodes get the ``width`` likeliest tokens as children. In the end the
    likeliest of all nodes stay. A node is never likelier than its parent, so that they form a tree.
    """

    width: int = 10
    draws = False

    def children(self, frontier: Sequence[Node], chances: Floats, left: int) -> Sequence[Guess]:
        """Return the likeliest tokens after each node."""
        del left
        return [
            Guess(node, rank, token, node.joint * float(row[token]))
            for node, row in zip(frontier, chances, strict=True)
            for rank, token in enumerate(likeliest(row, self.width))
        ]

    def expanded(self, nodes: Sequence[Node], left: int) -> Sequence[Node]:
        """Return the likeliest nodes of a depth."""
        del left
        return sorted(nodes, key=lambda node: -node.joint)[: self.width]


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
    frontier: Sequence[Node] = nodes[:1]
    after: dict[int, Floats] = {}
    for depth in range(num_depths):
        if not frontier:
            break
        chances = guess(depth, frontier)
        after.update(zip((node.index for node in frontier), chances, strict=True))
        chosen = growth.children(frontier, chances, num_nodes + 1 - len(nodes))
        fresh = [
            Node(index, (*child.parent.path, child.rank), child.token, child.joint)
            for index, child in enumerate(chosen, start=len(nodes))
        ]
        nodes += fresh
        frontier = growth.expanded(fresh, num_nodes + 1 - len(nodes))
    if growth.draws:  # all of them stay: to choose among drawn tokens would change their distribution
        tree, drawn = _tree_of(nodes)
        return replace(tree, proposals=np.stack([after[max(parent, 0)] for parent in tree.parents])), drawn
    return _tree_of(sorted(nodes, key=lambda node: (-node.joint, node.index))[: num_nodes + 1])


def _tree_of(kept: Sequence[Node]) -> tuple[DraftTree, tuple[Node, ...]]:
    """Return the tree of these nodes, in the order in which they were drafted."""
    places: dict[Path, int] = {}
    nodes = list[Node]()
    for node in sorted(kept, key=lambda node: node.index):
        places[node.path] = len(nodes)
        nodes.append(replace(node, index=len(nodes)))
    parents = tuple(places[node.path[:-1]] if node.path else -1 for node in nodes)
    return DraftTree(tuple(node.token for node in nodes), parents), tuple(nodes)
