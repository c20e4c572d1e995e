"""Walks: the orders of a pipeline as nodes in levels, so that many strategies of many pipelines are timed at once."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.integers import widened
from sim.planner.space import Ints
from sim.planner.stages import NUM_PLACES
from sim.training.pipeline.actions import LETTERS, Order
from sim.training.pipeline.evaluate import StuckError
from sim.training.pipeline.placement import Placement

Floats = NDArray[np.float64]

NUM_ACTIONS: Final = len(LETTERS) * NUM_PLACES
"""Actions by kind and kind of stage."""
NUM_KINDS: Final = NUM_ACTIONS + NUM_PLACES**2
"""Kinds of nodes: actions, then pairs that overlap, by the kinds of stage of the forward and of the backward."""

_START: Final = -2
_NOTHING: Final = -1
"""In place of a node's number: the start of the step, and what ends before all begins."""
_WIDTH: Final = 8
"""Strategies that are timed side by side on a copy of a walk."""
_MOST_NODES: Final = 1 << 17
"""Nodes that are timed together, so that their ends stay small: 8 MB."""


class Walk(Struct, frozen=True):
    """The nodes of all ranks, rank by rank: a node is an action, or two that overlap.

    ``needs``: a node of another rank. ``second_needs``: the other one of every pair. ``kinds``: of ``NUM_KINDS``.
    ``stops``: after the last node of every rank.
    """

    needs: Ints
    second_needs: Ints
    kinds: Ints
    stops: Ints

    @property
    def begins(self) -> Ints:
        """Return the first node of every rank."""
        return np.concatenate([[0], self.stops[:-1]])


def walk_of(orders: Sequence[Order], place: Placement, places: Sequence[int]) -> Walk:
    """Return the walk of all ranks' orders. ``places``: the kind of every virtual stage."""
    every = Order.joined(*orders)
    kinds = widened(every.kinds) * NUM_PLACES + np.array(places)[every.stages]
    stops = np.cumsum([len(order) for order in orders])
    if not every.overlaps.any():
        return Walk(_needs(every, np.arange(len(every)), place), np.zeros(0, dtype=np.int64), kinds, stops)
    second = np.concatenate([[False], every.overlaps[:-1]])
    node = np.cumsum(~second) - 1
    needs, of_nodes = _needs(every, node, place), kinds[~second]
    of_nodes[node[second]] = NUM_ACTIONS + kinds[every.overlaps] * NUM_PLACES + kinds[second] % NUM_PLACES
    return Walk(needs[~second], needs[second], of_nodes, node[stops - 1] + 1)


def _needs(actions: Order, node: Ints, place: Placement) -> Ints:
    """Return for every action the node of another rank that gives what it waits for. ``node``: of every action."""
    kinds, stages, microbatches = actions.kinds, actions.stages, actions.microbatches
    given = np.full((2, place.num_stages + 1, int(microbatches.max()) + 1), _NOTHING)
    gives = kinds != LETTERS.index("W")
    given[np.minimum(kinds, 1)[gives], stages[gives], microbatches[gives]] = node[gives]
    stage, ranks = np.arange(place.num_stages), np.array(place.ranks)
    of_forward = np.where((stage % place.chain_length > 0) & (np.roll(ranks, 1) != ranks), stage - 1, -1)
    of_backward = np.where(((stage + 1) % place.chain_length > 0) & (np.roll(ranks, -1) != ranks), stage + 1, -1)
    wanted = np.stack([of_forward, of_backward, of_backward, np.full_like(stage, -1)])
    found: Ints = given[np.minimum(kinds, 1), wanted[kinds, stages], microbatches]
    return found


def _joined(walks: Sequence[Walk]) -> tuple[Walk, Ints]:
    """Return the nodes of all walks as one, and the number of nodes before each walk."""
    offsets = np.cumsum([0, *(len(walk.kinds) for walk in walks[:-1])])
    pairs = list(zip(walks, offsets.tolist(), strict=True))
    needs, second_needs = (
        np.concatenate([np.add(found, offset, where=found >= 0, out=found.copy()) for found, offset in of_walks])
        for of_walks in (
            [(walk.needs, offset) for walk, offset in pairs],
            [(walk.second_needs, offset) for walk, offset in pairs],
        )
    )
    kinds, stops = np.concatenate([walk.kinds for walk in walks]), [walk.stops + offset for walk, offset in pairs]
    return Walk(needs, second_needs, kinds, np.concatenate(stops)), offsets


def levels_of(walks: Sequence[Walk]) -> list[Ints]:
    """Return the level of every node of walks: a node waits only for nodes of earlier levels.

    Raises StuckError where an action waits for a later one.
    """
    joined, offsets = _joined(walks)
    second_needs = np.full_like(joined.needs, _NOTHING)
    second_needs[joined.kinds >= NUM_ACTIONS] = joined.second_needs
    heads, stops = joined.begins, joined.stops
    levels, done = np.zeros_like(joined.needs), np.zeros(len(joined.needs) + 1, dtype=np.bool_)
    done[_NOTHING] = True
    level = 0
    while len(heads):
        ready = done.take(joined.needs.take(heads)) & done.take(second_needs.take(heads))
        nodes = heads[ready]
        if not len(nodes):
            raise StuckError(f"the orders get stuck after {level} actions")
        levels[nodes], done[nodes] = level, True
        heads = heads + ready
        goes_on = heads < stops
        if not goes_on.all():
            heads, stops = heads[goes_on], stops[goes_on]
        level += 1
    return np.split(levels, offsets[1:])


def ends_of(walks: Sequence[Walk], which: Ints, seconds: Floats, hop_s: Floats) -> Floats:
    """Return when the first, inner and the last ranks end, of shape (3, strategies), in seconds.

    ``which``: the number of each strategy's walk. ``seconds``: of every kind of node, of shape (strategies, 32).
    ``hop_s``: of a message between ranks. Of two ranks, inner ones end at 0.
    """
    levels = levels_of(walks)
    found = np.empty((3, len(which)))
    for batch in _batches(walks, levels, which):
        columns = np.stack([padded for _, padded in batch])
        of_ranks = _ends_of_batch([(walks[at], levels[at]) for at, _ in batch], seconds[columns], hop_s[columns])
        found[:, columns] = of_ranks
    return found


def _batches(walks: Sequence[Walk], levels: Sequence[Ints], which: Ints) -> list[list[tuple[int, Ints]]]:
    """Return copies of walks to time together, with the strategies of each; the last is repeated to fill a copy.

    Copies with as many levels are side by side.
    """
    order = np.argsort(which, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    copies = [
        (int(which[group[0]]), np.resize(group[begin : begin + _WIDTH], _WIDTH))
        for group in groups
        for begin in range(0, len(group), _WIDTH)
    ]
    copies.sort(key=lambda copy: int(levels[copy[0]].max()))
    nodes = np.cumsum([len(walks[at].kinds) for at, _ in copies])
    numbered = zip((nodes // _MOST_NODES).tolist(), copies, strict=True)
    return [[copy for _, copy in batch] for _, batch in groupby(numbered, key=itemgetter(0))]


def _ends_of_batch(copies: Sequence[tuple[Walk, Ints]], seconds: Floats, hop_s: Floats) -> Floats:
    """Return when the first, inner and the last rank of copies of walks end, of shape (3, copies, width).

    ``copies``: walks with the levels of their nodes. ``seconds``: of shape (copies, width, 32).
    """
    walks, level = [walk for walk, _ in copies], np.concatenate([levels for _, levels in copies])
    joined, offsets = _joined(walks)
    turn = 2 * level + (joined.kinds < NUM_ACTIONS)
    turns = np.argsort(turn.astype(np.min_scalar_type(int(turn.max()))), kind="stable")
    places = np.empty(len(turns) + 2, dtype=np.int64)
    places[turns], places[_START], places[_NOTHING] = np.arange(len(turns)), len(turns), len(turns) + 1
    before = places[turns - 1]
    before[places[joined.begins]] = places[_START]
    needs, kinds = places[joined.needs[turns]], joined.kinds[turns]
    is_pair = joined.kinds >= NUM_ACTIONS
    second_needs = places[joined.second_needs[(np.cumsum(is_pair) - 1)[turns[kinds >= NUM_ACTIONS]]]]
    copy = np.repeat(np.arange(len(copies)), [len(walk.kinds) for walk in walks])[turns]
    stops, pairs = np.cumsum(np.bincount(level)), np.cumsum(np.bincount(level[is_pair], minlength=int(level.max()) + 1))
    table = np.ascontiguousarray(seconds.transpose(0, 2, 1)).reshape(-1, seconds.shape[1])
    spent = copy * NUM_KINDS + kinds
    ends_s = np.empty((len(turns) + 2, seconds.shape[1]))
    ends_s[_START], ends_s[_NOTHING] = 0.0, -np.inf
    for (begin, stop), (pair, last_pair) in zip(_spans(stops), _spans(pairs), strict=True):
        begin_s = ends_s.take(needs[begin:stop], axis=0)
        if last_pair > pair:
            others_s = ends_s.take(second_needs[pair:last_pair], axis=0)
            np.maximum(begin_s[: last_pair - pair], others_s, out=begin_s[: last_pair - pair])
        begin_s += hop_s.take(copy[begin:stop], axis=0)
        np.maximum(begin_s, ends_s.take(before[begin:stop], axis=0), out=begin_s)
        np.add(begin_s, table.take(spent[begin:stop], axis=0), out=ends_s[begin:stop])
    return _of_ranks([ends_s[places[walk.stops - 1 + at]] for walk, at in zip(walks, offsets.tolist(), strict=True)])


def _spans(stops: Ints) -> Iterator[tuple[int, int]]:
    """Yield the begin and the stop of parts that end at ``stops``."""
    return pairwise([0, *stops.tolist()])


def _of_ranks(ends_s: Sequence[Floats]) -> Floats:
    """Return the ends of the first, the latest inner and the last rank. ``ends_s``: of all ranks of every walk."""
    inner_s = [of_walk[1:-1].max(axis=0, initial=0.0) for of_walk in ends_s]
    return np.stack([np.stack([of[0] for of in ends_s]), np.stack(inner_s), np.stack([of[-1] for of in ends_s])])
