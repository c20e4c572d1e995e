"""What one rank's device did, and what each activity came after.

An activity comes after the one before it on its stream, after the call that launched it, and after those of other
streams that its stream had been told to wait for. Older profilers do not say the latter: there an activity that nothing
else explains, and that starts right when one of another stream ends, is taken to have waited for that one.
What is left between the last of these and its start is its own delay, and stays what it was.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sim.replay.host import Host
from traces.kineto.rank import EventWait, RankTrace
from traces.timeline import Floats

UNEXPLAINED_S: Final = 15e-6
"""More than this after all that is known, a start has another reason: launching takes 5 to 15 us (Kineto traces)."""
FOLLOWS_WITHIN_S: Final = 3e-6
"""How soon an activity starts after what its stream waited for."""


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """By row: the rows it comes after, and its delay after them and after its launch in seconds, which clocks that
    disagree may make negative. ``num_inferred`` dependencies between streams were inferred from times.
    """

    before: list[tuple[int, ...]]
    delay_s: list[float]
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
        delay_s, num_inferred = [], 0
        for row, stream in enumerate(streams.codes.tolist()):
            found = [last[stream]] if stream in last else []
            found += self._told(streams.values[stream], launch_s[row])
            ready_s = max((self.end_s[other] for other in found), default=-np.inf)
            call = self.host.launch[row]
            if call >= 0:
                ready_s = max(ready_s, self.host.calls[call].start_s)
            inferred = [] if self.rank.waits else self._inferred(row, stream, ready_s)
            num_inferred += len(inferred)
            found += inferred
            ready_s = max([ready_s, *(self.end_s[other] for other in inferred)])
            before.append(tuple(dict.fromkeys(found)))
            delay_s.append(self.start_s[row] - ready_s if ready_s > -np.inf else self.start_s[row])
            last[stream] = row
        return DeviceOrder(before, delay_s, num_inferred)

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

    def _told(self, stream: str, launch_s: float) -> list[int]:
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
