"""Which passes of a timeline's period a picture draws, and the gaps that the others leave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from traces.timeline import EQUAL, Period, Timeline
from traces.unrolling import DURING, num_unrolled

MAX_DRAWN: Final = 60_000
"""A timeline of no more rows is drawn with all passes; of a longer one about so many rows are drawn."""
FEWEST_PASSES: Final = 2
"""So many passes are drawn at least at the beginning of the period, in its middle and at its end."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Passes ``first`` to ``last`` of a period, which are not drawn, and their time in the step."""

    first: int
    last: int
    begin_s: float
    end_s: float

    @property
    def num_passes(self) -> int:
        """Return how many passes are not drawn."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Idle:
    """The part of a gap in which nothing is drawn on a stream (its code) of a rank."""

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
    """Yield the part of a gap that each stream is empty in, of streams that are used on both sides of it."""
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
