"""Small pictures of pipelines, many on one page: bars without words, all on one axis of time."""

from typing import Final

import numpy as np
from msgspec import Struct

from scenarios.report.charts.gantt import Floats, choose_bars
from scenarios.report.phases import MESSAGE, PHASES
from traces.timeline import Rows, Timeline

MAX_RANKS: Final = 8
MAX_BARS: Final = 2_400


class Thumbnail(Struct, frozen=True):
    """The bars of a small picture as columns.

    Line of the rank, index in ``PHASES``, second virtual stage or not, times.

    All bars that start before ``complete_s`` are included.
    """

    num_lanes: int
    complete_s: float
    lane: Rows
    phase: Rows
    is_paler: Rows
    start_s: Floats
    end_s: Floats


def thumbnail(timeline: Timeline) -> Thumbnail:
    """Return the first bars of a timeline's pipeline, without messages."""
    gantt = choose_bars(timeline, max_ranks=MAX_RANKS, max_bars=None)
    bars = gantt.windows[0].bars
    rows = np.flatnonzero(bars.phase != PHASES.index(MESSAGE))
    complete_s = timeline.duration_s
    if len(rows) > MAX_BARS:
        complete_s = float(bars.start_s[rows[MAX_BARS]])
        rows = rows[:MAX_BARS]
    chosen = bars.take(rows)
    return Thumbnail(
        len(gantt.ranks), complete_s, chosen.lane, chosen.phase, chosen.chunk % 2, chosen.start_s, chosen.end_s
    )
