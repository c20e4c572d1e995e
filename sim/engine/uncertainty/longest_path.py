"""When everything in a graph of dependencies ends, for many sets of durations at once.

Most ends are waited for a few levels later alone. So levels are passed in pieces that fit a processor's cache, and from
one piece to the next only those ends are kept that are still asked for: of GPT 1T on 3,072 GPUs, before its period, at
most 127 of 10,465.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.sorting import run_begins, sorted_order

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PIECE: Final = 1024
"""Chains of a piece: 1 MiB of ends in 128 draws."""


class Durations(Struct, frozen=True, eq=False):
    """Node n lasts ``base_s[n]`` times row ``rows[n]`` of ``factors`` (rows x draws)."""

    base_s: Floats
    rows: Ints
    factors: Floats

    @property
    def num_draws(self) -> int:
        """Return how many sets of durations there are."""
        return int(self.factors.shape[1])

    def of(self, nodes: Ints) -> "Durations":
        """Return those of some nodes, in their order."""
        return Durations(self.base_s[nodes], self.rows[nodes], self.factors)


class Kind(NamedTuple):
    """Nodes of some chains, in each of them alike: the row of factors that they err with, and how long they last."""

    chains: Ints
    rows: Ints
    base_s: Floats


class Lasting(Struct, frozen=True, eq=False):
    """How long the chains of a piece last: each as its nodes of ``kinds[0]`` and, if it has more kinds, of the next.

    Nodes of a chain that err alike are of one kind. ``num_kept``: chains of the piece before that come first.
    """

    num_kept: int
    kinds: tuple[Kind, ...]

    def drawn_s(self, factors: Floats) -> Floats:
        """Return it with drawn factors, by rows, x draws; what is kept is to be filled in."""
        (chains, rows, base_s), *more = self.kinds
        drawn_s = np.empty((self.num_kept + len(chains), factors.shape[1]))
        own_s = drawn_s[self.num_kept :]
        factors.take(rows, axis=0, out=own_s, mode="clip")  # by default NumPy fills a copy
        own_s *= base_s[:, None]
        for chains, rows, base_s in more:
            own_s[chains] += factors.take(rows, axis=0) * base_s[:, None]
        return drawn_s


def drawn_s(lasting: Iterable[Lasting], factors: Floats) -> Iterator[Floats]:
    """Return how long chains last with drawn factors, piece by piece."""
    return (of_piece.drawn_s(factors) for of_piece in lasting)


class Piece(Struct, frozen=True, eq=False):
    """Some levels in a row; first in it come those chains of the piece before that are still asked for.

    ``kept``: the rows of these in the piece before. ``ends``: of these, and of every level, the row past the last one.
    In a level those that wait for more come first; ``waiting[l][k]`` is how many wait for more than k. ``before`` has
    the rows of what they wait for: level by level, of each the first, of each that has one the second, and so on.
    """

    kept: Ints
    ends: tuple[int, ...]
    waiting: tuple[tuple[int, ...], ...]
    before: Ints

    def ends_s(self, before_s: Floats, lasting_s: Floats) -> Floats:
        """Return when chains end, by rows, x draws: the latest end of what each waits for plus what it lasts.

        ``before_s``: the ends of the piece before. ``lasting_s`` is written over.
        """
        ends_s, begin, edge = lasting_s, 0, 0
        ends_s[: len(self.kept)] = before_s[self.kept]
        for end, waiting in zip(self.ends, self.waiting, strict=True):
            if waiting:
                waited_s = ends_s.take(self.before[edge : edge + sum(waiting)], axis=0)
                edge += len(waited_s)
                latest_s, place = waited_s[: waiting[0]], waiting[0]
                for count in waiting[1:]:
                    np.maximum(latest_s[:count], waited_s[place : place + count], out=latest_s[:count])
                    place += count
                ends_s[begin:end] += latest_s
            begin = end
        return ends_s


class Levels(Struct, frozen=True, eq=False):
    """A graph's nodes in an order in which each comes after all that it waits for, cut where none waits for another.

    Nodes of which each waits for the one before alone, and is all that waits for it, are a chain: they have one place.
    ``place[n]``: where the chain of node n comes in that order; the first ``num_known`` nodes come first in it, and
    their ends are given. ``rows[n]``: the row, in the last of the ``pieces``, of a node whose end is asked for;
    ``last``: the rows of the chains for which none waits.
    """

    place: Ints
    num_known: int
    pieces: tuple[Piece, ...]
    rows: Ints
    last: Ints

    @classmethod
    def of(
        cls, num_nodes: int, before: Ints, after: Ints, wanted: Ints, num_known: int = 0, most: int = PIECE
    ) -> "Levels":
        """Return the levels of a graph with the edges from ``before[i]`` to ``after[i]``.

        ``wanted``: nodes whose ends are asked for; they end their chains. The first ``num_known`` wait for nothing.
        ``most``: chains of a piece that has several levels; as many as are kept from the one before, if these are more.
        Raises ValueError where the edges form a circle.
        """
        ending = np.concatenate([np.arange(num_known), wanted])
        chain_of, num_chains = _chains(num_nodes, before, after, ending)
        between = chain_of[before] != chain_of[after]
        order = _Order.of(num_chains, chain_of[before[between]], chain_of[after[between]])
        place = order.place[chain_of]
        pieces, rows, last = order.cut(place[wanted], num_known, most)
        return cls(place, num_known, pieces, rows[place], last)

    def lasting(self, durations: Durations) -> tuple[Lasting, ...]:
        """Return how long the chains of each piece last, with any factors in the rows of durations."""
        num_rows = int(durations.rows.max(initial=0)) + 1
        keys = self.place * num_rows + durations.rows
        begins = run_begins(keys[order := sorted_order(keys)])
        kinds, base_s = keys[order[begins]], np.bincount(np.cumsum(begins) - 1, durations.base_s[order])
        places, rows = np.divmod(kinds, num_rows)
        first = np.append(np.flatnonzero(run_begins(places)), len(kinds))
        found, begin = list[Lasting](), self.num_known
        for piece in self.pieces:
            own = first[begin : begin + piece.ends[-1] - len(piece.kept) + 1]
            begin += len(own) - 1
            counts, layers = np.diff(own), list[Kind]()
            for nth in range(int(counts.max(initial=1))):
                chains = np.flatnonzero(counts > nth)
                kind = own[chains] + nth
                layers.append(Kind(chains, rows[kind], base_s[kind]))
            found.append(Lasting(len(piece.kept), tuple(layers)))
        return tuple(found)

    def ends_s(self, lasting_s: Iterable[Floats], known_s: Floats) -> Floats:
        """Return when chains end, by the rows of the last piece, x draws. ``known_s``: the ends that are given.

        ``lasting_s``: how long the chains of each piece last; it is written over.
        """
        ends_s = known_s
        for piece, piece_s in zip(self.pieces, lasting_s, strict=True):
            ends_s = piece.ends_s(ends_s, piece_s)
        return ends_s

    def latest_s(self, ends_s: Floats) -> Floats:
        """Return when the last of all chains ends, per draw."""
        latest_s: Floats = ends_s[self.last].max(axis=0, initial=0.0)
        return latest_s


class _Order(Struct, frozen=True, eq=False):
    """The levels of chains; ``place``: by chain. The rest is as in a ``Piece``, with places instead of rows."""

    place: Ints
    ends: Ints
    waiting: tuple[tuple[int, ...], ...]
    before: Ints

    @classmethod
    def of(cls, num_chains: int, before: Ints, after: Ints) -> "_Order":
        """Return those of a graph with the edges from ``before[i]`` to ``after[i]``."""
        level_of = _levels(num_chains, before, after)
        num_before = np.bincount(after, minlength=num_chains)
        most = int(num_before.max(initial=0))
        order = sorted_order(level_of * (most + 1) + most - num_before)
        place = np.empty(num_chains, np.int64)
        place[order] = np.arange(num_chains)
        by_node = sorted_order(place[after])
        ordinal = np.arange(len(after)) - np.repeat(np.cumsum(num_before[order]) - num_before[order], num_before[order])
        level = level_of[after[by_node]]
        by_level = sorted_order(level * most + ordinal)
        ends = np.cumsum(np.bincount(level_of))
        waiting = _counts(level[by_level], ordinal[by_level], len(ends))
        return cls(place, ends, waiting, place[before[by_node[by_level]]])

    def cut(self, wanted: Ints, num_known: int, most: int) -> tuple[tuple[Piece, ...], Ints, Ints]:
        """Return the pieces, by place the row in the last one of what is asked for, and the rows of the last chains.

        ``wanted``: the places of chains that are asked for at the end, as the last ones are.
        """
        edges = np.cumsum([0, *map(sum, self.waiting)])
        asked = np.full(len(self.place), len(self.before))  # by the last edge from each
        asked[self.before] = np.arange(len(self.before))  # of several writes the last one stays
        last = np.flatnonzero(asked == len(self.before))
        asked[wanted] = len(self.before)
        rows, shown = np.arange(len(self.place)), np.arange(num_known)
        pieces, begin, level = list[Piece](), num_known, 0
        while level < len(self.ends):
            kept = shown[asked[shown] >= edges[level]]
            past = max(level + 1, int(np.searchsorted(self.ends, begin + max(most, len(kept)), side="right")))
            kept_rows, ends = rows[kept], self.ends[level:past] - begin + len(kept)
            shown = np.concatenate([kept, np.arange(begin, self.ends[past - 1])])
            rows[shown] = np.arange(len(shown))
            before = rows[self.before[edges[level] : edges[past]]]
            pieces.append(Piece(kept_rows, (len(kept), *ends.tolist()), ((), *self.waiting[level:past]), before))
            begin, level = int(self.ends[past - 1]), past
        return tuple(pieces), rows, rows[last]


def _chains(num_nodes: int, before: Ints, after: Ints, ending: Ints) -> tuple[Ints, int]:
    """Return the chain of every node, numbered from 0, and how many there are; each ``ending`` node ends its chain."""
    ends_chain = np.bincount(before, minlength=num_nodes) != 1
    ends_chain[ending] = True
    joined = (np.bincount(after, minlength=num_nodes)[after] == 1) & ~ends_chain[before]
    head = np.arange(num_nodes)
    head[after[joined]] = before[joined]
    for _ in range(num_nodes.bit_length() + 2):  # each node looks twice as far back as before
        head, nearer = head[head], head
        if np.array_equal(head, nearer):
            break
    else:
        raise ValueError("some nodes wait for each other in a circle")
    numbers = np.cumsum(head == np.arange(num_nodes))
    return numbers[head] - 1, int(numbers[-1]) if num_nodes else 0


def _levels(num_nodes: int, before: Ints, after: Ints) -> Ints:
    """Return the level of every node: 0 of those that wait for nothing, else one more than the last that it waits for.

    Nodes get ready level by level, each after the last that it waits for.
    Raises ValueError where the edges form a circle.
    """
    successors = after[sorted_order(before)].tolist()
    first = np.cumsum(np.append(0, np.bincount(before, minlength=num_nodes))).tolist()
    waits = np.bincount(after, minlength=num_nodes).tolist()
    ready, sizes = [node for node, count in enumerate(waits) if not count], list[int]()
    order = list[int]()
    while ready:
        order += ready
        sizes.append(len(ready))
        level, ready = ready, []
        for node in level:
            for successor in successors[first[node] : first[node + 1]]:
                if waits[successor] == 1:
                    ready.append(successor)
                else:
                    waits[successor] -= 1
    if len(order) < num_nodes:
        raise ValueError(f"{num_nodes - len(order)} nodes wait for each other in a circle")
    level_of = np.empty(num_nodes, np.int64)
    level_of[order] = np.repeat(np.arange(len(sizes)), sizes)
    return level_of


def _counts(levels: Ints, ordinals: Ints, num_levels: int) -> tuple[tuple[int, ...], ...]:
    """Return of every level how many edges have each ordinal; edges come by level, then by ordinal."""
    begins = np.flatnonzero(np.diff(levels, prepend=-1) | np.diff(ordinals, prepend=-1))
    counts = np.diff(begins, append=len(levels)).tolist()
    first = np.searchsorted(levels[begins], np.arange(num_levels + 1)).tolist()
    return tuple(tuple(counts[begin:end]) for begin, end in pairwise(first))
