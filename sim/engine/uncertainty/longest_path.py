"""When everything in a graph of dependencies ends, for many sets of durations at once."""

from functools import cached_property
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.sorting import run_begins, sorted_order

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    def followed_by(self, more: Floats) -> "Durations":
        """Return those with further rows of factors."""
        return Durations(self.base_s, self.rows, np.concatenate([self.factors, more]))


class Levels(Struct, frozen=True, dict=True, eq=False):
    """A graph's nodes in an order in which each comes after all that it waits for, cut where none waits for another.

    Nodes of which each waits for the one before alone, and is all that waits for it, are a chain: they have one place.
    ``place[n]``: where the chain of node n comes in that order; ``ends``: of every level the place past its last one.
    In a level those that wait for more come first; ``waiting[l][k]`` is how many wait for more than k. ``before`` has
    the places of what they wait for: level by level, of each the first, of each that has one the second, and so on.
    """

    place: Ints
    ends: tuple[int, ...]
    waiting: tuple[tuple[int, ...], ...]
    before: Ints

    @classmethod
    def of(cls, num_nodes: int, before: Ints, after: Ints, wanted: Ints | None = None) -> "Levels":
        """Return the levels of a graph with the edges from ``before[i]`` to ``after[i]``.

        ``wanted``: nodes whose ends are asked for; they end their chains. None: all are, each a chain of its own.
        Raises ValueError where the edges form a circle.
        """
        if wanted is None:
            return cls._of_chains(np.arange(num_nodes), num_nodes, before, after)
        chain_of, num_chains = _chains(num_nodes, before, after, wanted)
        between = chain_of[before] != chain_of[after]
        return cls._of_chains(chain_of, num_chains, chain_of[before[between]], chain_of[after[between]])

    @classmethod
    def _of_chains(cls, chain_of: Ints, num_chains: int, before: Ints, after: Ints) -> "Levels":
        """Return the levels of chains with edges between them; ``chain_of``: that of every node."""
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
        return cls(place[chain_of], tuple(ends.tolist()), waiting, place[before[by_node[by_level]]])

    def ends_s(self, durations: Durations) -> Floats:
        """Return when chains end, by their places, x draws: the latest end of what each waits for plus its duration."""
        return self.let_wait(self.lasting_s(durations))

    def let_wait(self, ends_s: Floats) -> Floats:
        """Return when chains end that last so long, by their places, x draws; what is given is written over."""
        before, begin, edge = self.before, 0, 0
        for end, waiting in zip(self.ends, self.waiting, strict=True):
            if waiting:
                waited_s = ends_s.take(before[edge : edge + sum(waiting)], axis=0)
                edge += len(waited_s)
                latest_s, place = waited_s[: waiting[0]], waiting[0]
                for count in waiting[1:]:
                    np.maximum(latest_s[:count], waited_s[place : place + count], out=latest_s[:count])
                    place += count
                ends_s[begin:end] += latest_s
            begin = end
        return ends_s

    @cached_property
    def last(self) -> Ints:
        """Return the places of the chains for which none waits."""
        is_last = np.ones(self.ends[-1] if self.ends else 0, np.bool_)
        is_last[self.before] = False
        return np.flatnonzero(is_last)

    def lasting_s(self, durations: Durations) -> Floats:
        """Return how long chains last, by their places, x draws: nodes of a chain that err alike count together."""
        num_rows = len(durations.factors)
        keys = self.place * num_rows + durations.rows
        begins = run_begins(keys[order := sorted_order(keys)])
        kinds, base_s = keys[order[begins]], np.bincount(np.cumsum(begins) - 1, durations.base_s[order])
        places, rows = np.divmod(kinds, num_rows)
        first = np.flatnonzero(run_begins(places))
        num_kinds = np.diff(first, append=len(kinds))
        lasting_s: Floats = durations.factors.take(rows[first], axis=0)
        lasting_s *= base_s[first, None]
        for nth in range(1, int(num_kinds.max(initial=0))):
            several = np.flatnonzero(num_kinds > nth)
            more = first[several] + nth
            lasting_s[several] += durations.factors[rows[more]] * base_s[more, None]
        return lasting_s


def _chains(num_nodes: int, before: Ints, after: Ints, wanted: Ints) -> tuple[Ints, int]:
    """Return the chain of every node, numbered from 0, and how many there are; each ``wanted`` node ends its chain."""
    ends_chain = np.bincount(before, minlength=num_nodes) != 1
    ends_chain[wanted] = True
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
