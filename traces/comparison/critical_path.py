"""The path of ops through a timeline that ends last: what its kinds of op have of the time from begin to end.

A timeline says when ops ran, not what they waited for. So the path is read off times: before an op comes the one on
its rank that was over last when it began, and where an op waits for another rank (a collective whose members, or a
receive whose send, the timeline knows) the path goes on with the last of them to begin. Time in which none of the
path's ops run is idle: the host's, or that of a rank which the timeline does not have.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.timeline import Floats, Rows, Timeline

IDLE: Final = "idle"
_SAME: Final = 1e-9
"""Moments that differ by less than this part of the step are one."""


def critical_path_s(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of the path by kind of op, and IDLE; they add up to the timeline's duration."""
    seconds = dict.fromkeys((*timeline.kind.values, IDLE), 0.0)
    cursor_s, begin_s = float(timeline.end_s.max()), float(timeline.start_s.min())
    last = _last_to_begin(timeline)
    queues = _Queues(timeline)
    row, seen = int(timeline.end_s.argmax()), set[int]()
    while row >= 0 and row not in seen:
        seen.add(row)
        over_s = min(cursor_s, float(timeline.end_s[row]))
        awaited = int(last[row])
        if not timeline.start_s[row] < timeline.start_s[awaited] < over_s:
            awaited = row
        from_s = min(over_s, float(timeline.start_s[awaited]))
        seconds[IDLE] += cursor_s - over_s
        seconds[timeline.kind.at(row)] += over_s - from_s
        cursor_s = from_s
        row = queues.before(awaited)
    seconds[IDLE] += max(0.0, cursor_s - begin_s)
    return {kind: spent_s for kind, spent_s in seconds.items() if spent_s > 0.0}


def _last_to_begin(timeline: Timeline) -> Rows:
    """Return for each row that of its collective or message which begins last: itself, where there is none."""
    last = np.arange(len(timeline), dtype=np.int64)
    messages = timeline.messages
    if len(messages.member):
        order = np.lexsort((timeline.start_s[messages.member], messages.collective))
        groups = messages.collective[order]
        ends = np.flatnonzero(np.append(groups[1:] != groups[:-1], True))
        number = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))
        last[messages.member[order]] = messages.member[order][ends][number]
    last[messages.recv] = messages.send
    return last


class _Queues:
    """The rows of each rank by end."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tolerance_s = _SAME * timeline.duration_s
        self._order = np.lexsort((timeline.start_s, timeline.end_s, timeline.rank)).astype(np.int64)
        self._end_s: Floats = timeline.end_s[self._order]
        self._place: NDArray[np.int64] = np.empty(len(timeline), dtype=np.int64)
        self._place[self._order] = np.arange(len(timeline))
        ranks = timeline.rank[self._order]
        self._first = np.searchsorted(ranks, timeline.rank, "left")
        self._end = np.searchsorted(ranks, timeline.rank, "right")

    def before(self, row: int) -> int:
        """Return the row of the same rank that was over last when a row began, -1 for none."""
        first, end = int(self._first[row]), int(self._end[row])
        begin_s = self._timeline.start_s[row] + self._tolerance_s
        place = first + int(np.searchsorted(self._end_s[first:end], begin_s, "right")) - 1
        place = min(place, int(self._place[row]) - 1)
        return int(self._order[place]) if place >= first else -1
