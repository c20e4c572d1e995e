"""Walks: the orders of a pipeline as nodes in levels, so that many strategies are timed at once."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.space import Ints
from sim.training.pipeline.actions import LETTERS, Order
from sim.training.pipeline.placement import Placement

Floats = NDArray[np.float64]

NUM_PLACES: Final = 4
"""Kinds of virtual stage: the first, inner ones with the least and the most layers, the last."""


class Walk(Struct, frozen=True):
    """The nodes of all ranks: a node is an action, or two that overlap.

    ``levels``: nodes that wait only for nodes of earlier levels. ``before``: the node before on the rank. ``needs``: up
    to two nodes of other ranks, of shape (nodes, 2); a node beyond the last ends before all begins. ``actions``: up to
    two actions, numbered by kind and kind of stage, of shape (nodes, 2). ``last``: the last node of every rank.
    """

    levels: tuple[Ints, ...]
    before: Ints
    needs: Ints
    actions: Ints
    last: Ints

    def ends_s(self, durations_s: Floats, hop_s: Floats, pairs_s: Floats | None = None) -> Floats:
        """Return when every rank ends its last action, of shape (ranks, strategies), in seconds.

        ``durations_s``: of every kind of action on every kind of stage, of shape (17, strategies); the last row is 0.
        ``hop_s``: of a message between ranks. ``pairs_s``: of a forward and a backward that overlap, by their kinds of
        stage, of shape (4, 4, strategies); None: one after the other.
        """
        spent_s = durations_s[self.actions[:, 0]] + durations_s[self.actions[:, 1]]
        if pairs_s is not None:
            both = self.actions[:, 1] != NO_ACTION
            places = self.actions[both] % NUM_PLACES
            spent_s[both] = pairs_s[places[:, 0], places[:, 1]]
        ends_s = np.full((len(self.before) + 1, len(hop_s)), -np.inf)
        for nodes in self.levels:
            come_s = ends_s[self.needs[nodes]].max(axis=1) + hop_s
            begin_s = np.maximum(np.maximum(ends_s[self.before[nodes]], come_s), 0.0)
            ends_s[nodes] = begin_s + spent_s[nodes]
        found: Floats = ends_s[self.last]
        return found


NO_ACTION: Final = len(LETTERS) * NUM_PLACES
"""The number of no action."""


def walk_of(orders: Sequence[Order], place: Placement, places: Sequence[int]) -> Walk:
    """Return the walk of all ranks' orders. ``places``: the kind of every virtual stage."""
    every = Order.joined(*orders)
    second = np.concatenate([[False], every.overlaps[:-1]])
    node = np.cumsum(~second) - 1
    num_nodes = int(node[-1]) + 1
    needs, actions = np.full((num_nodes, 2), num_nodes), np.full((num_nodes, 2), NO_ACTION)
    needs[node, second.astype(np.int64)] = _needs(every, node, place)
    actions[node, second.astype(np.int64)] = every.kinds * NUM_PLACES + np.array(places)[every.stages]
    stop = node[np.cumsum([len(order) for order in orders]) - 1] + 1
    begin = np.concatenate([[0], stop[:-1]])
    before = np.arange(num_nodes) - 1
    before[begin] = num_nodes
    return Walk(tuple(_levels(needs, begin, stop)), before, needs, actions, stop - 1)


def _needs(actions: Order, node: Ints, place: Placement) -> Ints:
    """Return for every action the node of another rank that gives what it waits for, or the one beyond the last."""
    kinds, stages, microbatches = actions.kinds, actions.stages, actions.microbatches
    forward, weight = kinds == LETTERS.index("F"), kinds == LETTERS.index("W")
    given = np.full((2, place.num_stages + 2, int(microbatches.max()) + 1), int(node[-1]) + 1)
    gives = ~weight
    given[forward[gives].astype(np.int64), stages[gives] + 1, microbatches[gives]] = node[gives]
    ranks = np.array([-1, *place.ranks, -1])
    other = stages + np.where(forward, 0, 2)
    ends = np.array([(place.is_last(stage), place.is_first(stage)) for stage in range(place.num_stages)])
    waits = ~weight & ~ends[stages, forward.astype(np.int64)] & (ranks[other] != ranks[stages + 1])
    found: Ints = np.where(waits, given[forward.astype(np.int64), other, microbatches], int(node[-1]) + 1)
    return found


def _levels(needs: Ints, begin: Ints, stop: Ints) -> Iterator[Ints]:
    """Yield the nodes of each level. ``begin``, ``stop``: of the nodes of every rank."""
    done = np.zeros(len(needs) + 1, dtype=np.bool_)
    done[-1] = True
    rank = np.repeat(np.arange(len(begin)), stop - begin)
    heads = begin.copy()
    while True:
        nodes = heads[heads < stop]
        ready = nodes[done[needs[nodes]].all(axis=1)]
        if not len(ready):
            return
        yield ready
        done[ready] = True
        heads[rank[ready]] += 1


def held_counts(order: Order, places: Sequence[int]) -> Ints:
    """Return what a rank holds at each of its different moments, of shape (moments, 16).

    Columns by kind of virtual stage: micro-batches that wait for their backward, and for their weight part, and those
    whose forward or whole backward runs, and whose backward runs in parts. What runs does not wait.
    """
    here = np.array(places)[order.stages][:, None] == np.arange(NUM_PLACES)
    forward, whole, inputs, weights = (here & (order.kinds == LETTERS.index(kind))[:, None] for kind in "FBIW")
    added = np.cumsum(forward, axis=0) - forward - np.cumsum(inputs | whole, axis=0)
    split = np.cumsum(inputs, axis=0) - inputs - np.cumsum(weights, axis=0)
    return distinct_moments(np.concatenate([added, split, forward | whole, inputs | weights], axis=1))


def distinct_moments(counts: Ints) -> Ints:
    """Return the different rows of counts."""
    keys = counts @ np.array([977**k % 1_000_003 for k in range(counts.shape[1])])
    return counts[np.unique(keys, return_index=True)[1]]
