"""A common clock for all ranks, from collectives that make every member wait for all others and so end together.

Each file has the clock of its host. First the drift between clocks is removed. Then a rank is shifted by the median
difference between its ends and those of other ranks, so a few late ends on one rank move nothing. The remaining
difference is the residual, and it is reported.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traces.kineto.drift import find_drift
from traces.kineto.ends import Ends, ends_of, medians, spread
from traces.kineto.matching import Collective
from traces.kineto.rank import US, RankTrace
from traces.timeline import Floats

_ROUNDS: Final = 20


class Alignment(Struct, frozen=True):
    """The alignment of clocks, by index of the rank.

    ``drift``: how much faster a clock runs than the median clock, as a fraction, if that is certain and possible.
    ``impossible_drift``: a drift too large for a clock. Common times are times since the rank's origin over ``1 +
        drift``, plus ``shift_s``.
    ``offset_s``: the shift of the clock against that of the first rank, at its origin.
    ``residual_s``, ``worst_residual_s``: the median and largest distance between a rank's ends and the common ends of
        its collectives after the shift (NaN: no common collective).
    ``num_collectives``: number of collectives used.
    ``early_s``: by collective, the time by which it ends on one rank before it begins on another, which is impossible
        (0: it does not).
    ``unaligned``: ranks without a common collective with the first rank, directly or through other ranks.
    """

    shift_s: Floats
    offset_s: Floats
    drift: Floats
    impossible_drift: Floats
    residual_s: Floats
    worst_residual_s: Floats
    num_collectives: int
    early_s: Floats
    unaligned: tuple[int, ...]


def align(traces: Sequence[RankTrace], collectives: Sequence[Collective]) -> Alignment:
    """Return the alignment by the ends of common collectives; without any, the files' own clocks stay."""
    clock_s, recorded = _clocks_s(traces), ends_of(traces, collectives)
    drift = find_drift(recorded, len(traces))
    ends = recorded.on_clocks(1 + drift.known)
    differences_s = {pair: float(np.median(ends.end_s[a] - ends.end_s[b])) for pair, (a, b) in ends.pairs()}
    shift_s, source = spread(differences_s, clock_s)
    for _ in range(_ROUNDS):
        change_s = medians(ends.rank, ends.common_s(shift_s) - ends.end_s - shift_s[ends.rank], len(traces))
        shift_s = shift_s + np.where(np.isnan(change_s), 0.0, change_s)
    shift_s -= shift_s[0] - clock_s[0]
    distance_s = np.abs(ends.end_s + shift_s[ends.rank] - ends.common_s(shift_s))
    worst_s = np.full(len(traces), np.nan)
    np.fmax.at(worst_s, ends.rank, distance_s)
    return Alignment(
        shift_s=shift_s,
        offset_s=shift_s - clock_s,
        drift=drift.known,
        impossible_drift=drift.impossible,
        residual_s=medians(ends.rank, distance_s, len(traces)),
        worst_residual_s=worst_s,
        num_collectives=ends.num_collectives,
        early_s=_early_s(ends, shift_s),
        unaligned=tuple(np.flatnonzero(source != 0).tolist()),
    )


def unmoved(num_ranks: int) -> Alignment:
    """Return the alignment of ranks with one common clock: no shifts."""
    zeros, unknown = np.zeros(num_ranks), np.full(num_ranks, np.nan)
    return Alignment(zeros, zeros, zeros, zeros, unknown, unknown, 0, np.empty(0), ())


def _clocks_s(traces: Sequence[RankTrace]) -> Floats:
    """Return each file's origin relative to the first one's, by the files' clocks."""
    first = traces[0]
    return np.array(
        [(t.base_time_ns - first.base_time_ns) * 1e-9 + (t.origin_us - first.origin_us) * US for t in traces]
    )


def _early_s(ends: Ends, shift_s: Floats) -> Floats:
    """Return, by collective, the time by which it ends on one rank before it has begun on all."""
    begun_s, over_s = np.full(ends.num_collectives, -np.inf), np.full(ends.num_collectives, np.inf)
    np.maximum.at(begun_s, ends.collective, ends.start_s + shift_s[ends.rank])
    np.minimum.at(over_s, ends.collective, ends.end_s + shift_s[ends.rank])
    return np.asarray(np.maximum(0.0, begun_s - over_s))
