"""The critical path of a timeline, and the time of each kind of op on it.

A timeline records times, not waits. So the path is derived from times. The predecessor of an op is the op of its rank
that ended last before it began; of several, the one on its own stream. From a message or collective the path goes on
with the end or member that began last; if they began together, as in simulations, with the one that arrived last. Time
without an op of the path is idle: it belongs to the host, or to a rank outside the timeline.
"""

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traces.timeline import NO_INDEX, Floats, Period, Rows, Timeline
from traces.unrolling import unrolled, with_count

IDLE: Final = "idle"
ROUNDING_S: Final = 1e-12
"""Sums of times within this difference, a picosecond, are equal up to rounding."""
_ADDING_UP: Final = 1e-12
"""Simulated times within this fraction of the step are equal up to rounding."""
_SAME_PLACE: Final = 1e-9
"""Places in a pass within this fraction of it are equal."""
PASSES: Final = 16
"""Number of passes of a folded timeline's period through which the path is first found."""
_TICK_S: Final = 1e-9
"""Measured times within this difference, a tick of the clocks, are equal."""


def critical_path_s(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of the path by kind of op, and IDLE; they add up to the timeline's duration.

    For a folded timeline the path is found through some passes of the period, and repeated for the others. If the path
    does not repeat itself there, it is found through all passes.
    """
    seconds = _folded_path_s(timeline)
    if seconds is None:
        every = unrolled(timeline)
        seconds = _Path.of(every).seconds(every)
    return {kind: spent_s for kind, spent_s in seconds.items() if spent_s > ROUNDING_S}


def _folded_path_s(timeline: Timeline) -> dict[str, float] | None:
    """Return the seconds of the path by kind, from a step with fewer passes.

    None if the path does not repeat itself.
    """
    period = timeline.period
    if period is None or period.count <= 2 * PASSES:
        return None
    count = PASSES
    for _ in range(2):
        short = unrolled(with_count(timeline, count))
        path = _Path.of(short)
        cycle = path.cycle(short, replace(period, count=count))
        if cycle is None:
            return None
        passes, steps = cycle
        more = (period.count - count) % passes
        if not more:
            times = (period.count - count) // passes
            total, of_cycle = path.seconds(short), path.seconds(short, steps)
            return {kind: spent_s + times * of_cycle[kind] for kind, spent_s in total.items()}
        count += more
    return None


class _Path(Struct, frozen=True):
    """A path as columns, from the end of the step to its beginning.

    Each step is at an op (``kind``), is idle for ``idle_s`` after it, spends ``spent_s`` on it, and continues at
    ``row`` from ``from_s`` on: the op itself, or the last end of its message or collective to arrive. The last step is
    only idle time.
    """

    kind: NDArray[np.int64]
    idle_s: Floats
    spent_s: Floats
    row: Rows
    from_s: Floats

    @classmethod
    def of(cls, timeline: Timeline) -> "_Path":
        """Return the path of a timeline.

        On every rank the path only goes back in the order of the rows' ends, so it visits no row twice and ends.
        """
        cursor_s, begin_s = float(timeline.end_s.max()), float(timeline.start_s.min())
        same_s = max(_ADDING_UP * timeline.duration_s, _TICK_S if timeline.source == "executed" else 0.0)
        queues = _Queues(timeline, same_s)
        ends = _Ends(timeline, queues, same_s)
        row, steps = int(timeline.end_s.argmax()), []
        while row >= 0:
            queues.leave(row)
            end_s = float(timeline.end_s[row])
            over_s = end_s if end_s < cursor_s - same_s else cursor_s
            awaited = ends.awaited(row, over_s)
            from_s = min(over_s, float(timeline.start_s[awaited]))
            steps.append((timeline.kind.codes[row], cursor_s - over_s, over_s - from_s, awaited, from_s))
            cursor_s, row = from_s, queues.before(awaited)
        steps.append((timeline.kind.codes[0], max(0.0, cursor_s - begin_s), 0.0, 0, begin_s))
        kinds, idle_s, spent_s, rows, from_s_of = zip(*steps, strict=True)
        return cls(np.array(kinds), np.array(idle_s), np.array(spent_s), np.array(rows), np.array(from_s_of))

    def seconds(self, timeline: Timeline, steps: slice = slice(None)) -> dict[str, float]:
        """Return the seconds of some steps by kind of op, and IDLE."""
        words = timeline.kind.values
        spent_s = np.bincount(self.kind[steps], weights=self.spent_s[steps], minlength=len(words))
        return dict(zip(words, spent_s.tolist(), strict=True)) | {IDLE: float(self.idle_s[steps].sum())}

    def cycle(self, timeline: Timeline, period: Period) -> tuple[int, slice] | None:
        """Return the number of passes after which the path repeats, and its steps in them; None if it never repeats."""
        slack_s = _SAME_PLACE * period.length_s
        borders_s = period.begin_s + np.arange(period.count) * period.length_s
        first = np.searchsorted(-self.from_s, -(borders_s + slack_s))  # the first step that crosses each border
        rows, at_s = self.row[first], self.from_s[first] - borders_s
        start_s = timeline.start_s[rows] - borders_s
        marks = [timeline.rank[rows], timeline.stream.codes[rows], timeline.name.codes[rows], timeline.stage[rows]]
        middle = period.count // 2
        for passes in range(1, middle // 2 + 1):
            places = [middle, middle - passes, middle - 2 * passes]
            same = all(len(set(mark[places].tolist())) == 1 for mark in marks)
            if same and max(np.ptp(at_s[places]), np.ptp(start_s[places])) <= slack_s:
                return passes, slice(int(first[middle]) + 1, int(first[middle - passes]) + 1)
        return None


class _Queues:
    """The rows of each rank by end, and for each row the last row that ended before it began.

    Rows that a path has left behind, and later rows of their ranks, are removed.
    """

    def __init__(self, timeline: Timeline, same_s: float) -> None:
        self._streams, self._rank, self._same_s = timeline.stream.codes, timeline.rank, same_s
        start_s, end_s = _levelled(timeline.start_s, same_s), _levelled(timeline.end_s, same_s)
        self._order = np.lexsort((start_s, end_s, timeline.rank)).astype(np.int64)
        self._own = np.empty(len(timeline), dtype=np.int64)
        self._own[self._order] = np.arange(len(timeline))
        self._left: dict[int, int] = {}
        self._end_s: Floats = end_s[self._order]
        self._first: Rows = np.searchsorted(timeline.rank[self._order], timeline.rank, "left")
        self._last = self._places_before(timeline)
        places = np.maximum(self._last, 0)
        self.free_s: Floats = np.where(self._last >= self._first, self._end_s[places], -np.inf)
        """By row: the end of its rank's previous row, -inf for the first."""

    def leave(self, row: int) -> None:
        """Remove a row, and the rows of its rank that ended after it."""
        self._left[int(self._rank[row])] = int(self._own[row])

    def before(self, row: int) -> int:
        """Return the row of the same rank that ended last before a row began, -1 for none."""
        first, last = int(self._first[row]), int(self._last[row])
        last = min(last, self._left.get(int(self._rank[row]), last + 1) - 1)
        if last < first:
            return -1
        earliest = first + int(np.searchsorted(self._end_s[first:last], self._end_s[last] - self._same_s, "left"))
        own = np.flatnonzero(self._streams[self._order[earliest : last + 1]] == self._streams[row])
        return int(self._order[earliest + own[-1] if len(own) else last])

    def _places_before(self, timeline: Timeline) -> Rows:
        """Return, for each row, the last index, by end, among its rank's rows that ended before it began."""
        places = np.empty(len(timeline), dtype=np.int64)
        edges = np.flatnonzero(np.diff(timeline.rank, prepend=NO_INDEX - 1, append=NO_INDEX - 1))
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            begin_s = timeline.start_s[first:end] + self._same_s
            places[first:end] = first + np.searchsorted(self._end_s[first:end], begin_s, "right") - 1
        return np.minimum(places, self._own - 1)


def _levelled(times_s: Floats, same_s: float) -> Floats:
    """Return times of which those that follow each other within ``same_s`` are equal: the first of them.

    Without it an op of no duration could come before an op that ends, but for rounding, when it begins.
    """
    order = np.argsort(times_s, kind="stable")
    ordered_s = times_s[order]
    begins = np.flatnonzero(np.diff(ordered_s, prepend=-np.inf) > same_s)
    levelled_s = np.empty_like(times_s)
    levelled_s[order] = np.repeat(ordered_s[begins], np.diff(begins, append=len(times_s)))
    return levelled_s


class _Ends:
    """The ends of messages, and the members of collectives."""

    def __init__(self, timeline: Timeline, queues: _Queues, same_s: float) -> None:
        self._start_s, self._free_s, self._same_s = timeline.start_s, queues.free_s, same_s
        self._number = timeline.messages.numbers(len(timeline))
        self._rows: NDArray[np.int64] = np.argsort(self._number, kind="stable")
        self._sorted = self._number[self._rows]

    def awaited(self, row: int, until_s: float) -> int:
        """Return the end that a row waited for, of those that began by ``until_s``.

        The row itself if there is no other.
        """
        number = self._number[row]
        if number == NO_INDEX:
            return row
        first, end = (int(np.searchsorted(self._sorted, number, side)) for side in ("left", "right"))
        rows = self._rows[first:end]
        rows = rows[self._start_s[rows] <= until_s + self._same_s]
        latest = rows[self._start_s[rows] >= self._start_s[rows].max() - self._same_s]
        free_s = self._free_s[latest]
        return row if self._last_to_come(row, latest, free_s) else int(latest[np.argmax(free_s)])

    def _last_to_come(self, row: int, latest: Rows, free_s: Floats) -> bool:
        """Return whether this end arrived last."""
        return bool((latest == row).any() and self._free_s[row] >= free_s.max() - self._same_s)
