"""One clock for all ranks: collectives that make every member wait for every other end at one moment, on all of them.

Each file has the clock of its host. A rank is shifted by the median difference between its ends and the others', so
that a few collectives that end late on one rank move nothing. What is left is the residual, and it is reported.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.kineto.matching import Collective
from traces.kineto.rank import US, RankTrace
from traces.timeline import Floats

SYNCHRONISING: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds that nobody leaves before all have come. Of a broadcast or a reduce some members leave early."""
_ROUNDS: Final = 20
_LEAST_FOR_A_LINE: Final = 6
_STRAIGHT: Final = 0.95
"""The correlation from which on distances lie on a line: by chance, six do so once in 270 times (Student's t)."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the clocks lie, by position of the rank.

    ``shift_s`` is added to a rank's own times to get common ones. ``offset_s`` is how far its clock was moved against
    that of the first rank; ``residual_s`` the median, ``worst_residual_s`` the largest distance between its ends and
    the common end of its collectives, after the move (NaN: no collective shared). ``drift`` is how much faster a clock
    runs than the common one, as a fraction: 0 where the distances do not grow with time. ``num_collectives`` were used;
    ``unaligned`` ranks share none with the first rank, not even through others.
    """

    shift_s: Floats
    offset_s: Floats
    residual_s: Floats
    worst_residual_s: Floats
    drift: Floats
    num_collectives: int
    unaligned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Members of shared collectives in columns: which collective, which rank, and when it ended there (s)."""

    collective: Indices
    rank: Indices
    end_s: Floats
    num_collectives: int


def align(traces: Sequence[RankTrace], collectives: Sequence[Collective]) -> Alignment:
    """Return the shifts that bring the ends of common collectives together; by the files' own clocks where none is."""
    clock_s = _clocks_s(traces)
    ends = _ends(traces, [c for c in collectives if len(c.members) > 1 and c.facts.kind in SYNCHRONISING])
    shift_s, reached = _spread(ends, clock_s)
    for _ in range(_ROUNDS):
        change_s = _medians(ends.rank, _common_ends_s(ends, shift_s) - ends.end_s - shift_s[ends.rank], len(traces))
        shift_s = shift_s + np.where(np.isnan(change_s), 0.0, change_s)
    shift_s -= shift_s[0] - clock_s[0]
    common_s = _common_ends_s(ends, shift_s)
    distance_s = np.abs(ends.end_s + shift_s[ends.rank] - common_s)
    worst_s = np.full(len(traces), np.nan)
    np.fmax.at(worst_s, ends.rank, distance_s)
    return Alignment(
        shift_s=shift_s,
        offset_s=shift_s - clock_s,
        residual_s=_medians(ends.rank, distance_s, len(traces)),
        worst_residual_s=worst_s,
        drift=_drift(ends, common_s, len(traces)),
        num_collectives=ends.num_collectives,
        unaligned=tuple(int(rank) for rank in np.flatnonzero(~reached)) if len(traces) > 1 else (),
    )


def _clocks_s(traces: Sequence[RankTrace]) -> Floats:
    """Return by how much each file's origin is later than the first one's, by the files' clocks."""
    first = traces[0]
    return np.array(
        [(t.base_time_ns - first.base_time_ns) * 1e-9 + (t.origin_us - first.origin_us) * US for t in traces]
    )


def _ends(traces: Sequence[RankTrace], collectives: Sequence[Collective]) -> _Ends:
    members = [(number, rank, row) for number, c in enumerate(collectives) for rank, row in c.members]
    return _Ends(
        collective=np.array([number for number, _, _ in members], dtype=np.int64),
        rank=np.array([rank for _, rank, _ in members], dtype=np.int64),
        end_s=np.array([traces[rank].rows.end_s[row] for _, rank, row in members], dtype=np.float64),
        num_collectives=len(collectives),
    )


def _spread(ends: _Ends, clock_s: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return first shifts, from rank to rank along shared collectives, and which ranks the first one reaches."""
    first_member = np.flatnonzero(np.diff(ends.collective, prepend=-1))
    anchor = first_member[ends.collective]
    differences: dict[tuple[int, int], list[float]] = {}
    for row, other in enumerate(anchor.tolist()):
        if row != other:
            pair = int(ends.rank[other]), int(ends.rank[row])
            differences.setdefault(pair, []).append(float(ends.end_s[other] - ends.end_s[row]))
    neighbours: dict[int, list[tuple[int, float]]] = {}
    for (one, other), values in sorted(differences.items(), key=lambda item: (-len(item[1]), item[0])):
        middle = float(np.median(values))
        neighbours.setdefault(one, []).append((other, middle))
        neighbours.setdefault(other, []).append((one, -middle))
    shift_s, known = clock_s.copy(), np.zeros(len(clock_s), dtype=np.bool_)
    reached = known.copy()
    for start in range(len(clock_s)):
        queue = deque([] if known[start] else [start])
        known[start] = True
        while queue:
            rank = queue.popleft()
            reached[rank] = start == 0
            for other, difference_s in neighbours.get(rank, ()):
                if not known[other]:
                    known[other] = True
                    shift_s[other] = shift_s[rank] + difference_s
                    queue.append(other)
    return shift_s, reached


def _common_ends_s(ends: _Ends, shift_s: Floats) -> Floats:
    """Return, for each member, the median end of its collective on the common clock."""
    return _medians(ends.collective, ends.end_s + shift_s[ends.rank], ends.num_collectives)[ends.collective]


def _drift(ends: _Ends, common_s: Floats, num_ranks: int) -> Floats:
    """Return the slope of each rank's distances from the common ends over time, where a line explains them."""
    result = np.zeros(num_ranks)
    for rank in range(num_ranks):
        own = ends.rank == rank
        time_s, distance_s = common_s[own], (ends.end_s - common_s)[own]
        if np.count_nonzero(own) < _LEAST_FOR_A_LINE or not np.ptp(time_s) or not np.ptp(distance_s):
            continue
        if abs(float(np.corrcoef(time_s, distance_s)[0, 1])) > _STRAIGHT:
            result[rank] = float(np.polyfit(time_s - time_s.mean(), distance_s, 1)[0])
    return result


def _medians(key: Indices, values: Floats, size: int) -> Floats:
    """Return the median of the values of each key, NaN for keys without any."""
    result = np.full(size, np.nan)
    if len(key):
        order = np.lexsort((values, key))
        ordered = values[order]
        present, first, count = np.unique(key[order], return_index=True, return_counts=True)
        result[present] = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return result
