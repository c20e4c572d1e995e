"""Starts and ends of shared collectives on each of their ranks, by which clocks are compared."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traces.kineto.matching import Collective
from traces.kineto.rank import RankTrace
from traces.timeline import Floats

SYNCHRONISING: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds that no member leaves before all have arrived. Some members of a broadcast or a reduce leave early."""

Indices = NDArray[np.int64]
Pair = tuple[int, int]
"""Positions of two ranks: the first member of their collectives, and another one."""


class Ends(Struct, frozen=True):
    """Members of shared collectives in columns: the collective, the rank, and start and end there (s)."""

    collective: Indices
    rank: Indices
    start_s: Floats
    end_s: Floats
    num_collectives: int

    def on_clocks(self, speed: Floats) -> "Ends":
        """Return the ends on corrected clocks; ``speed``: by rank, the speed of the recorded clock."""
        own = speed[self.rank]
        return replace(self, start_s=self.start_s / own, end_s=self.end_s / own)

    def common_s(self, shift_s: Floats) -> Floats:
        """Return, for each member, the median end of its collective; ``shift_s`` is added to a rank's times."""
        ends_s = self.end_s + shift_s[self.rank]
        return medians(self.collective, ends_s, self.num_collectives)[self.collective]

    def pairs(self) -> list[tuple[Pair, tuple[Indices, Indices]]]:
        """Return the rows shared by two ranks, as rows of one and of the other, by pair; pairs with most rows first."""
        first = np.flatnonzero(np.diff(self.collective, prepend=-1))[self.collective]
        others = np.flatnonzero(first != np.arange(len(first)))
        anchors = first[others]
        keys = np.stack([self.rank[anchors], self.rank[others]], axis=1)
        present, group = np.unique(keys, axis=0, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        pieces = np.split(order, np.cumsum(np.bincount(group.ravel()))[:-1])
        found = [((int(one), int(other)), piece) for (one, other), piece in zip(present, pieces, strict=False)]
        found.sort(key=lambda pair: (-len(pair[1]), pair[0]))
        return [(pair, (anchors[piece], others[piece])) for pair, piece in found]


def synchronising(collectives: Iterable[Collective]) -> list[Collective]:
    """Return the collectives that make all of several ranks wait for each other."""
    return [c for c in collectives if len(c.members) > 1 and c.facts.kind in SYNCHRONISING]


def ends_of(traces: Sequence[RankTrace], collectives: Iterable[Collective]) -> Ends:
    """Return the ends of the collectives that make all of several ranks wait for each other."""
    shared = synchronising(collectives)
    members = [(number, rank, row) for number, c in enumerate(shared) for rank, row in c.members]
    return Ends(
        collective=np.array([number for number, _, _ in members], dtype=np.int64),
        rank=np.array([rank for _, rank, _ in members], dtype=np.int64),
        start_s=np.array([traces[rank].rows.start_s[row] for _, rank, row in members], dtype=np.float64),
        end_s=np.array([traces[rank].rows.end_s[row] for _, rank, row in members], dtype=np.float64),
        num_collectives=len(shared),
    )


def spread(steps: Mapping[Pair, float], begin: Floats) -> tuple[Floats, Indices]:
    """Return a value for each rank, summed from rank to rank over the steps, and the first rank of each chain.

    ``steps``: the excess of the second of a pair over the first, the surest first.
    ``begin``: the values of first ranks.
    """
    neighbours: dict[int, list[tuple[int, float]]] = {}
    for (one, other), step in steps.items():
        neighbours.setdefault(one, []).append((other, step))
        neighbours.setdefault(other, []).append((one, -step))
    values, source = begin.copy(), np.full(len(begin), -1)
    for start in range(len(begin)):
        if source[start] >= 0:
            continue
        source[start], queue = start, deque([start])
        while queue:
            rank = queue.popleft()
            for other, step in neighbours.get(rank, ()):
                if source[other] < 0:
                    source[other], values[other] = start, values[rank] + step
                    queue.append(other)
    return values, source


def medians(key: Indices, values: Floats, size: int) -> Floats:
    """Return the median of the values of each key, NaN for keys without any."""
    result = np.full(size, np.nan)
    if len(key):
        order = np.lexsort((values, key))
        ordered = values[order]
        present, first, count = np.unique(key[order], return_index=True, return_counts=True)
        result[present] = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return result
