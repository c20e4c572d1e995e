"""Drafting methods: chains of tokens from a draft model or from the prompt, and trees from parts of the target model.

The names of trees differ in the time of a draft alone: a static tree follows from the hit rates, and the steps of a
dynamic one are those of a recording.
``medusa``: heads beside each other on the last hidden state (Cai et al. 2024). ``hydra``: each head also sees the
tokens before it (Ankner et al. 2024). ``clover``: a layer before the heads, and an attention cell from token to token
(Xiao et al. 2024, Clover); ``clover2``: two such layers. ``eagle``: a layer for each depth (Li et al. 2024, EAGLE-1).
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, Literal, Protocol

from msgspec import Struct

from sim.serving.decoding.method import Decoding, SteadyDraft
from sim.serving.decoding.tree import Table, greedy_tree, length_probabilities, widths

TreeDraftName = Literal["medusa", "hydra", "clover", "clover2", "eagle"]


class DraftPrices(Protocol):
    """Times of a model's parts, in seconds."""

    def layer_s(self, tokens: int) -> float:
        """Return the time of a layer without its attention."""

    def head_s(self, rows: int) -> float:
        """Return the time of the output layer."""

    def square_s(self, rows: int) -> float:
        """Return the time of a product with a square matrix of the hidden size."""


class TreeDraft(Struct, frozen=True):
    """The parts of a draft. ``layers_once``: layers before the first depth; ``layers``, ``squares``: of each depth.

    ``in_turn``: a depth is drafted for every node of the one before; else for the sequences alone.
    """

    layers_once: int
    layers: int
    squares: int
    in_turn: bool

    def time_s(self, prices: DraftPrices, rows: int, frontiers: Sequence[int]) -> float:
        """Return the time of a draft for so many sequences; ``frontiers``: nodes of a tree's depths but the last."""
        found = self.layers_once * prices.layer_s(rows) if self.layers_once else 0.0
        for frontier in frontiers:
            tokens = rows * frontier if self.in_turn else rows
            found += self.squares * prices.square_s(tokens) + prices.head_s(tokens)
            found += self.layers * prices.layer_s(tokens) if self.layers else 0.0
        return found


TREE_DRAFTS: Final[dict[TreeDraftName, TreeDraft]] = {
    "medusa": TreeDraft(0, 0, 1, in_turn=False),
    "hydra": TreeDraft(0, 0, 2, in_turn=True),
    "clover": TreeDraft(1, 0, 4, in_turn=True),  # queries, keys and values of the cell, and the head's block
    "clover2": TreeDraft(2, 0, 5, in_turn=True),  # the cell, and the projection of two vectors to one
    "eagle": TreeDraft(0, 1, 2, in_turn=True),  # the projection of two vectors to one
}


class _PricedTree(Struct, frozen=True):
    """The draft of a tree with so many nodes at its depths, all but the last, on a model."""

    draft: TreeDraft
    prices: DraftPrices
    frontiers: tuple[int, ...]

    def time_s(self, rows: int) -> float:
        """Return the seconds of a step's draft for so many sequences."""
        return self.draft.time_s(self.prices, rows, self.frontiers)


def tree_decoding(name: TreeDraftName, table: Table, num_nodes: int, prices: DraftPrices) -> Decoding:
    """Return a method that verifies the best tree of so many nodes for these hit rates."""
    tree, draft = greedy_tree(table, num_nodes), TREE_DRAFTS[name]
    frontiers = widths(tree)[:-1]
    return Decoding(
        positions=1 + len(tree),
        lengths=length_probabilities(tree, table),
        draft=_PricedTree(draft, prices, frontiers),
    )


def recorded_tree(
    name: TreeDraftName, lengths: Sequence[float], positions: float, frontiers: Sequence[float], prices: DraftPrices
) -> Decoding:
    """Return a method whose trees differ from step to step, with the lengths of recorded steps.

    A pass has the mean positions of the recording, rounded up. ``frontiers``: mean number of nodes that were guessed
    after at each depth.
    """
    sizes = tuple(ceil(size) for size in frontiers if size)
    return Decoding(
        positions=ceil(positions), lengths=tuple(lengths), draft=_PricedTree(TREE_DRAFTS[name], prices, sizes)
    )


def recorded_steps(lengths: Sequence[float], positions: float) -> Decoding:
    """Return a method that drafts at no cost, with the lengths of recorded steps and their mean positions."""
    return Decoding(positions=ceil(positions), lengths=tuple(lengths))


def chain_lengths(acceptance: float, drafted: int) -> tuple[float, ...]:
    """Return the probabilities that a step yields 1, 2, ... tokens, where each drafted token is accepted alike.

    Leviathan et al. 2023, equation 1: their mean is (1 - a^(g+1)) / (1 - a) for g drafted tokens.
    """
    return (*((1.0 - acceptance) * acceptance**length for length in range(drafted)), acceptance**drafted)


def chain_decoding(acceptance: float, drafted: int, pass_s: float) -> Decoding:
    """Return a method that verifies a chain of drafted tokens, each from a draft model's pass of ``pass_s`` seconds.

    ``acceptance``: the probability that a drafted token is accepted where those before it were.
    """
    return Decoding(
        positions=1 + drafted, lengths=chain_lengths(acceptance, drafted), draft=SteadyDraft(drafted * pass_s)
    )
