"""The passes of a timeline's period that a picture draws, and the gaps of the others."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from traces.timeline import EQUAL, Period, Timeline
from traces.unrolling import DURING, num_unrolled

MAX_DRAWN: Final = 60_000
"""Rows up to which all passes are drawn; of a longer timeline about this many rows are drawn."""
FEWEST_PASSES: Final = 2
"""Fewest passes drawn at the beginning, in the middle and at the end of the period."""


class Gap(Struct, frozen=True):
    """Passes ``first`` to ``last`` of a period, which are not drawn, and their time in the step."""

    first: int
    last: int
    begin_s: float
    end_s: float

    @property
    def num_passes(self) -> int:
        """Return the number of passes that are not drawn."""
        return self.last - self.first + 1


class Idle(Struct, frozen=True):
    """The part of a gap without any drawn op on a stream (its code) of a rank."""

    rank: int
    stream: int
    begin_s: float
    end_s: float


def drawn_passes(timeline: Timeline) -> list[int]:
    """Return the passes to draw, from 0, rising: all where there are few rows, else the first, middle and last."""
    if timeline.period is None:
        return []
    count = timeline.period.count
    in_pass = int((timeline.period.part(timeline.start_s) == DURING).sum())
    if num_unrolled(timeline) <= MAX_DRAWN:
        return list(range(count))
    number = max(FEWEST_PASSES, (MAX_DRAWN - (len(timeline) - in_pass)) // (3 * max(1, in_pass)))
    if 3 * number >= count:
        return list(range(count))
    middle = (count - number) // 2
    return [*range(number), *range(middle, middle + number), *range(count - number, count)]


def gaps(period: Period, passes: Sequence[int]) -> Iterator[Gap]:
    """Yield the gaps between drawn passes (rising, the first and the last among them)."""
    for before, after in pairwise(passes):
        if after > before + 1:
            begin_s, end_s = (period.begin_s + number * period.length_s for number in (before + 1, after))
            yield Gap(before + 1, after - 1, begin_s, end_s)


def idle_in(timeline: Timeline, gap: Gap) -> Iterator[Idle]:
    """Yield, for streams used on both sides of a gap, the part of the gap in which the stream is empty."""
    slack_s = EQUAL * (gap.end_s - gap.begin_s)
    track = timeline.rank.astype(np.int64) * len(timeline.stream.values) + timeline.stream.codes
    is_after = timeline.start_s >= gap.end_s - slack_s
    for which in np.intersect1d(track[is_after], track[~is_after]).tolist():
        of_track = track == which
        begin_s = max(gap.begin_s, float(timeline.end_s[of_track & ~is_after].max()))
        end_s = min(gap.end_s, float(timeline.start_s[of_track & is_after].min()))
        if end_s > begin_s:
            rank, stream = divmod(which, len(timeline.stream.values))
            yield Idle(rank, stream, begin_s, end_s)
