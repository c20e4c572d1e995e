"""The activities of one rank's device, and their predecessors.

An activity comes after the one before it on its stream, after the call that launched it, and after those of other
streams that its stream had been told to wait for. Older profilers do not say the latter: there an activity that nothing
else explains, and that starts right when one of another stream ends, is taken to have waited for that one.
What is left between the last of these and its start is its own delay, and stays what it was. After an idle device that
is the way from the call to the device; an activity that was waiting on its stream starts sooner after the one before.
So of the first, only as much stays where the device is busy as the median of the second.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sim.replay.host import Host
from traces.kineto.rank import EventWait, Indices, RankTrace
from traces.timeline import Floats

UNEXPLAINED_S: Final = 15e-6
"""More than this after all that is known, a start has another reason: launching takes 5 to 15 us (Kineto traces)."""
FOLLOWS_WITHIN_S: Final = 3e-6
"""How soon an activity starts after what its stream waited for."""
_LEAST_FOR_A_GAP: Final = 8
"""From as few activities that were waiting on their streams the gap between two is known."""


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """By row: the rows it comes after, and its delay after them in seconds (below 0: clocks disagree).

    After its launch a row is delayed by ``launching_s`` more. ``num_inferred`` dependencies between streams were
    inferred from times.
    """

    before: list[tuple[int, ...]]
    delay_s: list[float]
    launching_s: list[float]
    num_inferred: int


def order_device(rank: RankTrace, host: Host, start_s: Floats, end_s: Floats) -> DeviceOrder:
    """Return what a rank's rows came after; ``end_s`` is when each let others go on, both on the common clock."""
    orderer = _Orderer(rank, host, start_s.tolist(), end_s.tolist())
    return orderer.run()


@dataclass(slots=True)
class _Orderer:
    rank: RankTrace
    host: Host
    start_s: list[float]
    end_s: list[float]
    by_end: list[int] = field(init=False)
    ends: list[float] = field(init=False)
    waits: dict[str, list[EventWait]] = field(init=False)
    launched: dict[str, tuple[list[float], list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_end = sorted(range(len(self.end_s)), key=self.end_s.__getitem__)
        self.ends = [self.end_s[row] for row in self.by_end]
        self.waits = defaultdict(list)
        for wait in sorted(self.rank.waits, key=lambda wait: wait.called_s, reverse=True):
            self.waits[wait.stream].append(wait)
        self.launched = self._launched()

    def run(self) -> DeviceOrder:
        """Return the order of all rows."""
        streams, launch_s = self.rank.rows.stream, self.rank.rows.launch_s.tolist()
        last: dict[int, int] = {}
        before: list[tuple[int, ...]] = []
        delay_s, waited, num_inferred = [], [], 0
        for row, stream in enumerate(streams.codes.tolist()):
            found = [last[stream]] if stream in last else []
            found += self._awaited(streams.values[stream], launch_s[row])
            free_s = max((self.end_s[other] for other in found), default=-np.inf)
            called_s, called_until_s = self._call(row)
            ready_s = max(free_s, called_s)
            inferred = [] if self.rank.waits else self._inferred(row, stream, ready_s)
            num_inferred += len(inferred)
            found += inferred
            free_s = max([free_s, *(self.end_s[other] for other in inferred)])
            ready_s = max(ready_s, free_s)
            before.append(tuple(dict.fromkeys(found)))
            delay_s.append(self.start_s[row] - ready_s if ready_s > -np.inf else self.start_s[row])
            waited.append(-1 if free_s < called_s else int(free_s > called_until_s > -np.inf))
            last[stream] = row
        return DeviceOrder(before, *_split(np.array(delay_s), np.array(waited)), num_inferred)

    def _call(self, row: int) -> tuple[float, float]:
        """Return from when to when the call lasted that launched a row; -inf where the trace does not say."""
        call = self.host.launch[row]
        return (self.host.calls[call].start_s, self.host.calls[call].end_s) if call >= 0 else (-np.inf, -np.inf)

    def _launched(self) -> dict[str, tuple[list[float], list[int]]]:
        """Return, by stream, when the host launched its rows, in order, and which they are."""
        rows = self.rank.rows
        found: dict[str, tuple[list[float], list[int]]] = {}
        known = np.flatnonzero(~np.isnan(rows.launch_s))
        for row in known[np.argsort(rows.launch_s[known], kind="stable")].tolist():
            times, numbers = found.setdefault(rows.stream.at(row), ([], []))
            times.append(float(rows.launch_s[row]))
            numbers.append(row)
        return found

    def _awaited(self, stream: str, launch_s: float) -> list[int]:
        """Return what a stream was told to wait for between its last row's launch and this one's."""
        pending, found = self.waits.get(stream, []), []
        while pending and pending[-1].called_s <= launch_s:
            wait = pending.pop()
            times, numbers = self.launched.get(wait.other, ([], []))
            position = bisect_right(times, wait.recorded_s)
            found += numbers[position - 1 : position]
        return found

    def _inferred(self, row: int, stream: int, ready_s: float) -> list[int]:
        """Return the row of another stream at whose end a row starts that nothing else explains."""
        start_s = self.start_s[row]
        if start_s - ready_s <= UNEXPLAINED_S or ready_s == -np.inf:
            return []
        codes = self.rank.rows.stream.codes
        position = bisect_right(self.ends, start_s)
        while position and start_s - self.ends[position - 1] <= FOLLOWS_WITHIN_S:
            position -= 1
            other = self.by_end[position]
            if other != row and codes[other] != stream and self.ends[position] > ready_s:
                return [other]
        return []


def _split(delay_s: Floats, waited: Indices) -> tuple[list[float], list[float]]:
    """Return delays after other rows, and how much more after the launch; ``waited``: 1 for rows that were launched
    while their stream was busy, -1 for those that an idle one waited for.
    """
    waiting_s = delay_s[waited > 0]
    gap_s = float(np.median(np.maximum(0.0, waiting_s))) if len(waiting_s) >= _LEAST_FOR_A_GAP else np.inf
    launching_s = np.where(waited < 0, np.maximum(0.0, delay_s - gap_s), 0.0)
    return (delay_s - launching_s).tolist(), launching_s.tolist()
