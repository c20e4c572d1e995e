"""Drafted tokens as a tree, and which of them a step accepts. Pure functions of numbers: no model is known here.

Node 0 is the root, the token that is sure. A chain is a tree whose nodes have one child each. ``logits[i]`` are the
target model's for the token after node i, given the path to node i.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class DraftTree(Struct, frozen=True):
    """Tokens of a draft, each after its parent. ``parents[0]`` is -1, and a parent stands before its children.

    ``proposals``: for each node the distribution from which its token was drawn [nodes, vocabulary]; None where tokens
    were not drawn.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    proposals: Floats | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> tuple[int, ...]:
        """Return how many nodes lie above each node."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return tuple(found)

    def ancestors(self) -> Bools:
        """Return the mask of a tree: row i is true at node i and at the nodes above it [nodes, nodes]."""
        found = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[node] |= found[parent]
        return found

    def children(self, node: int) -> tuple[int, ...]:
        """Return the nodes right after this one, in their order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)


def chain_of(tokens: Sequence[int], proposals: Floats | None = None) -> DraftTree:
    """Return tokens one after the other; the first is the root."""
    return DraftTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), proposals)


class Accepted(Struct, frozen=True):
    """The accepted nodes, from the root on, and the token after the last of them: the next root."""

    path: tuple[int, ...]
    next_token: int


class Acceptance(Protocol):
    """A rule that says which drafted tokens stay."""

    def accept(self, tree: DraftTree, logits: Floats) -> Accepted:
        """Return what a step accepts."""


class GreedyAcceptance(Struct, frozen=True):
    """Accept what the target model finds likeliest: the output is that of greedy decoding."""

    def accept(self, tree: DraftTree, logits: Floats) -> Accepted:
        """Return the path along which every token is the target's first choice."""
        choices = logits.argmax(axis=1)
        path = [0]
        while True:
            fitting = [child for child in tree.children(path[-1]) if tree.tokens[child] == choices[path[-1]]]
            if not fitting:
                return Accepted(tuple(path), int(choices[path[-1]]))
            path.append(fitting[0])


class RejectionAcceptance(Struct, frozen=True):
    """Accept a drawn token with probability min(1, p/q): the output has the target's distribution.

    Leviathan et al. 2023, algorithm 1, where a node has one child. Of several, each drawn by itself from the same
    distribution, they are tried in turn, each for what those before it left out (Miao et al. 2024, SpecInfer).
    ``temperature``: of the target; above 0.
    """

    generator: np.random.Generator
    temperature: float = 1.0

    def accept(self, tree: DraftTree, logits: Floats) -> Accepted:
        """Return the path of accepted tokens, and a token drawn from what the draft left out."""
        target, proposals = probabilities(logits, self.temperature), tree.proposals
        if proposals is None and len(tree) > 1:
            message = "rejection sampling needs the distributions from which the tokens were drawn"
            raise ValueError(message)
        path, wanted = [0], target[0]
        children = list(tree.children(0))
        while children and proposals is not None:
            node = children.pop(0)
            token = tree.tokens[node]
            if self.generator.random() * proposals[node, token] < wanted[token]:
                path.append(node)
                wanted, children = target[node], list(tree.children(node))
            else:
                wanted = residual(wanted, proposals[node])
        return Accepted(tuple(path), self._draw(wanted))

    def _draw(self, distribution: Floats) -> int:
        return int(self.generator.choice(len(distribution), p=distribution))


class TypicalAcceptance(Struct, frozen=True):
    """Accept a token that is not unlikely where the target is unsure: p > min(``epsilon``, ``delta`` e^-H).

    Cai et al. 2024, Medusa: H is the entropy of the target's distribution. The longest accepted path stays, of equal
    ones the likeliest. The output is *not* that of the target's distribution.
    """

    generator: np.random.Generator
    temperature: float = 1.0
    epsilon: float = 0.09
    delta: float = 0.3

    def accept(self, tree: DraftTree, logits: Floats) -> Accepted:
        """Return the longest path of typical tokens, and a token drawn after it."""
        target = probabilities(logits, self.temperature)
        limits = typical_limits(target, self.epsilon, self.delta)
        best: dict[int, tuple[int, float]] = {0: (1, 0.0)}  # length and log-likelihood of accepted paths, by last node
        for node, parent in enumerate(tree.parents):
            chance = target[parent, tree.tokens[node]] if node else 1.0
            if node and parent in best and chance > limits[parent]:
                length, likelihood = best[parent]
                best[node] = length + 1, likelihood + float(np.log(chance))
        last = max(best, key=lambda node: best[node])
        next_token = int(self.generator.choice(target.shape[1], p=target[last]))
        return Accepted(tuple(np.flatnonzero(tree.ancestors()[last]).tolist()), next_token)


def probabilities(logits: Floats, temperature: float) -> Floats:
    """Return the distribution of each row of logits."""
    scaled = logits / temperature
    raised = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    found: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return found


def residual(wanted: Floats, proposed: Floats) -> Floats:
    """Return the distribution of a token after a rejection: max(0, p - q), normalised."""
    rest = np.maximum(wanted - proposed, 0.0)
    found: Floats = rest / rest.sum()
    return found


def typical_limits(target: Floats, epsilon: float, delta: float) -> Floats:
    """Return the probability that a token must exceed, for each row: min(epsilon, delta e^-H).

    The entropy H takes log(p + 1e-5), as Medusa's code does.
    """
    entropy = -(target * np.log(target + 1e-5)).sum(axis=-1)
    found: Floats = np.minimum(epsilon, delta * np.exp(-entropy))
    return found
