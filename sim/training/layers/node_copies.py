"""How many rows travel where a token is sent once to every node with experts of its choice.

The P ranks that share out experts lie on N nodes of G neighbours each: rank n G + p has the place p on node n. A row
for a token goes from its source, of place p, to the rank of place p on every node with experts that it chooses. That
rank, the relay, hands it on inside its node, a row for every choice there. What experts return is summed on the relay,
token by token, and a row for each token goes back. DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2.
"""

from functools import cached_property

import numpy as np
from msgspec import Struct

from sim.moe.choices import GroupLimit
from sim.moe.routing import Counts, of_ranks
from sim.plan.words.op import SizeTable


class Nodes(Struct, frozen=True):
    """The nodes on which ranks lie that share out experts, and the groups of experts in which a token chooses."""

    number: int
    limit: GroupLimit


class NodeTraffic(Struct, frozen=True, dict=True):
    """The rows of one layer. ``counts``, [source, expert]: choices."""

    counts: Counts
    nodes: Nodes

    @cached_property
    def across(self) -> SizeTable:
        """Return the rows that each rank sends to each on its way to a node: one for a token and node."""
        tokens, num_ranks = self.nodes.limit.tokens_of_parts(self.counts, self.nodes.number), len(self.counts)
        sizes = np.zeros((num_ranks, num_ranks), dtype=np.int64)
        place = np.arange(num_ranks) % self._per_node
        for node in range(self.nodes.number):
            sizes[np.arange(num_ranks), node * self._per_node + place] = tokens[:, node]
        return _table(sizes)

    @cached_property
    def within(self) -> SizeTable:
        """Return the rows that each relay sends to each rank of its node: one for a choice."""
        nodes, per_node = self.nodes.number, self._per_node
        sent = of_ranks(self.counts, len(self.counts)).reshape(nodes, per_node, nodes, per_node).sum(0)
        sizes = np.zeros((nodes, per_node, nodes, per_node), dtype=np.int64)
        for node in range(nodes):
            sizes[node, :, node] = sent[:, node]
        return _table(sizes.reshape(len(self.counts), -1))

    @cached_property
    def counts_across(self) -> SizeTable:
        """Return one number from each rank to each rank of its place: of the rows for a node."""
        place = np.arange(len(self.counts)) % self._per_node
        return _table((place[:, None] == place).astype(np.int64))

    @cached_property
    def counts_within(self) -> SizeTable:
        """Return a number from each relay to each rank of its node for each of the rank's experts."""
        node = np.arange(len(self.counts)) // self._per_node
        return _table((node[:, None] == node) * (self.counts.shape[1] // len(self.counts)))

    @property
    def _per_node(self) -> int:
        return len(self.counts) // self.nodes.number


def _table(sizes: Counts) -> SizeTable:
    return SizeTable(map(tuple, sizes.tolist()))
