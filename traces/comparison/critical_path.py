"""The path of ops through a timeline that ends last: what its kinds of op have of the time from begin to end.

A timeline says when ops ran, not what they waited for. So the path is read off times: before an op comes the one on
its rank that was over last when it began, of several at once that of its own stream. Of a message's ends, or a
collective's members, the path goes on with the one that began last; of those that began at once, as a simulation draws
them, with the one that came last. Time in which none of the path's ops run is idle: the host's, or that of a rank which
the timeline does not have.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.timeline import NO_INDEX, Floats, Rows, Timeline

IDLE: Final = "idle"
ROUNDING_S: Final = 1e-12
"""Sums of times that differ by less, a picosecond, differ by how they were added up."""
_SAME: Final = 1e-9
"""Moments that differ by less than this part of the step are one."""


def critical_path_s(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of the path by kind of op, and IDLE; they add up to the timeline's duration."""
    seconds = dict.fromkeys((*timeline.kind.values, IDLE), 0.0)
    cursor_s, begin_s = float(timeline.end_s.max()), float(timeline.start_s.min())
    queues = _Queues(timeline)
    ends = _Ends(timeline, queues)
    row, seen = int(timeline.end_s.argmax()), set[int]()
    while row >= 0 and row not in seen:
        seen.add(row)
        over_s = min(cursor_s, float(timeline.end_s[row]))
        awaited = ends.awaited(row, over_s)
        from_s = min(over_s, float(timeline.start_s[awaited]))
        seconds[IDLE] += cursor_s - over_s
        seconds[timeline.kind.at(row)] += over_s - from_s
        cursor_s = from_s
        row = queues.before(awaited)
    seconds[IDLE] += max(0.0, cursor_s - begin_s)
    return {kind: spent_s for kind, spent_s in seconds.items() if spent_s > ROUNDING_S}


class _Queues:
    """The rows of each rank by end, and after which of them each row began."""

    def __init__(self, timeline: Timeline) -> None:
        self._streams = timeline.stream.codes
        self._tolerance_s = _SAME * timeline.duration_s
        self._order = np.lexsort((timeline.start_s, timeline.end_s, timeline.rank)).astype(np.int64)
        self._end_s: Floats = timeline.end_s[self._order]
        self._first: Rows = np.searchsorted(timeline.rank[self._order], timeline.rank, "left")
        self._last = self._places_before(timeline)
        places = np.maximum(self._last, 0)
        self.free_s: Floats = np.where(self._last >= self._first, self._end_s[places], -np.inf)
        """When, before each row began, its rank's last row was over: -inf for the first."""

    def before(self, row: int) -> int:
        """Return the row of the same rank that was over last when a row began, -1 for none."""
        first, last = int(self._first[row]), int(self._last[row])
        if last < first:
            return -1
        earliest = first + int(np.searchsorted(self._end_s[first:last], self._end_s[last] - self._tolerance_s, "left"))
        own = np.flatnonzero(self._streams[self._order[earliest : last + 1]] == self._streams[row])
        return int(self._order[earliest + own[-1] if len(own) else last])

    def _places_before(self, timeline: Timeline) -> Rows:
        """Return the last place of each row's rank, by end, of what was over when the row began, and not the row."""
        places = np.empty(len(timeline), dtype=np.int64)
        own = np.empty(len(timeline), dtype=np.int64)
        own[self._order] = np.arange(len(timeline))
        edges = np.flatnonzero(np.diff(timeline.rank, prepend=NO_INDEX - 1, append=NO_INDEX - 1))
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            begin_s = timeline.start_s[first:end] + self._tolerance_s
            places[first:end] = first + np.searchsorted(self._end_s[first:end], begin_s, "right") - 1
        return np.minimum(places, own - 1)


class _Ends:
    """The rows that are ends of one message, or members of one collective."""

    def __init__(self, timeline: Timeline, queues: _Queues) -> None:
        self._start_s, self._free_s = timeline.start_s, queues.free_s
        self._tolerance_s = _SAME * timeline.duration_s
        self._number = timeline.messages.numbers(len(timeline))
        self._rows: NDArray[np.int64] = np.argsort(self._number, kind="stable")
        self._sorted = self._number[self._rows]

    def awaited(self, row: int, until_s: float) -> int:
        """Return the end that kept a row waiting, of those that began until then: itself, where there is no other."""
        number = self._number[row]
        if number == NO_INDEX:
            return row
        first, end = (int(np.searchsorted(self._sorted, number, side)) for side in ("left", "right"))
        rows = self._rows[first:end]
        rows = rows[self._start_s[rows] <= until_s + self._tolerance_s]
        latest = rows[self._start_s[rows] >= self._start_s[rows].max() - self._tolerance_s]
        free_s = self._free_s[latest]
        return row if self._last_to_come(row, latest, free_s) else int(latest[np.argmax(free_s)])

    def _last_to_come(self, row: int, latest: Rows, free_s: Floats) -> bool:
        """Return whether no other end came later than this one."""
        return bool((latest == row).any() and self._free_s[row] >= free_s.max() - self._tolerance_s)
