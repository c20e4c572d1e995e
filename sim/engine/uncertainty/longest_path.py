"""When everything in a graph of dependencies ends, for many sets of durations at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """Node n lasts ``base_s[n]`` times row ``rows[n]`` of ``factors`` (rows x draws)."""

    base_s: Floats
    rows: Ints
    factors: Floats

    @property
    def num_draws(self) -> int:
        """Return how many sets of durations there are."""
        return len(self.factors[0])


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """A graph's nodes in an order in which each comes after all that it waits for, cut where none waits for another.

    ``place[n]``: where node n comes in that order; ``ends``: of every level the place past its last node. In a level
    those that wait for more come first; ``waiting[l][k]`` is how many wait for more than k. ``before`` has the places
    of what they wait for: level by level, of each node the first, of each that has one the second, and so on.
    """

    place: Ints
    ends: tuple[int, ...]
    waiting: tuple[tuple[int, ...], ...]
    before: Ints

    @classmethod
    def of(cls, num_nodes: int, before: Ints, after: Ints) -> "Levels":
        """Return the levels of a graph with the edges from ``before[i]`` to ``after[i]``.

        Raises ValueError where they form a circle.
        """
        num_before = np.bincount(after, minlength=num_nodes)
        levels = [level[np.argsort(-num_before[level], kind="stable")] for level in _levels(num_nodes, before, after)]
        order = np.concatenate([*levels, np.empty(0, np.int64)])
        if len(order) < num_nodes:
            raise ValueError(f"{num_nodes - len(order)} nodes wait for each other in a circle")
        place, level_of = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
        place[order] = np.arange(num_nodes)
        level_of[order] = np.repeat(np.arange(len(levels)), [len(level) for level in levels])
        by_node = np.argsort(place[after], kind="stable")
        ordinal = np.arange(len(after)) - np.repeat(np.cumsum(num_before[order]) - num_before[order], num_before[order])
        by_level = np.lexsort((ordinal, level_of[after[by_node]]))
        waiting = tuple(tuple(np.cumsum(np.bincount(num_before[level])[:0:-1])[::-1].tolist()) for level in levels)
        ends = tuple(np.cumsum([len(level) for level in levels], dtype=np.int64).tolist())
        return cls(place, ends, waiting, place[before[by_node[by_level]]])

    def ends_s(self, durations: Durations) -> Floats:
        """Return when nodes end, by their places, x draws: the latest end of what each waits for plus its duration."""
        ends_s = np.empty((len(self.place), durations.num_draws))
        base_s, rows = np.empty(len(self.place)), np.empty(len(self.place), np.int64)
        base_s[self.place], rows[self.place] = durations.base_s, durations.rows
        factors, before, begin, edge = durations.factors, self.before, 0, 0
        for end, waiting in zip(self.ends, self.waiting, strict=True):
            lasting_s = factors[rows[begin:end]]
            lasting_s *= base_s[begin:end, None]
            if waiting:
                waited_s = ends_s[before[edge : edge + waiting[0]]]
                edge += waiting[0]
                for count in waiting[1:]:
                    np.maximum(waited_s[:count], ends_s[before[edge : edge + count]], out=waited_s[:count])
                    edge += count
                lasting_s += waited_s
            ends_s[begin:end] = lasting_s
            begin = end
        return ends_s


def _levels(num_nodes: int, before: Ints, after: Ints) -> Iterator[Ints]:
    """Yield nodes that wait for nothing, then those that wait for these at the latest, and so on."""
    order = np.argsort(before, kind="stable")
    successors = after[order]
    first = np.searchsorted(before[order], np.arange(num_nodes + 1))
    waits = np.bincount(after, minlength=num_nodes)
    level = np.flatnonzero(waits == 0)
    while len(level):
        yield level
        begins, counts = first[level], first[level + 1] - first[level]
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        released, times = np.unique(successors[np.repeat(begins, counts) + offsets], return_counts=True)
        waits[released] -= times
        level = released[waits[released] == 0]
