"""The activities of one rank's device, and their predecessors.

An activity follows the previous activity of its stream, the call that launched it, and the activities of other streams
that its stream was told to wait for. Older profilers do not record such waits. There an activity without other
explanation that starts right when an activity of another stream ends is assumed to have waited for it.

The time between the last predecessor and the activity's start is the activity's own delay, which a replay keeps. On an
idle device this delay is the time from the call to the device. An activity that was queued on its stream starts sooner
after its predecessor. So where a replay finds the device busy, an idle device's delay is cut to the median delay of
queued activities.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct

from sim.replay.host import Host
from traces.kineto.rank import EventWait, Indices, RankTrace
from traces.timeline import Floats

UNEXPLAINED_S: Final = 15e-6
"""Delay after all known predecessors that needs another explanation: launching takes 5 to 15 us (Kineto traces)."""
FOLLOWS_WITHIN_S: Final = 3e-6
"""Longest time from the end of an activity to the start of an activity that waited for it."""
_LEAST_FOR_A_GAP: Final = 8
"""Fewest queued activities from which the gap between two is estimated."""


class DeviceOrder(Struct, frozen=True):
    """By row: its predecessors, and its delay after them in seconds (below 0: clocks disagree).

    ``launching_s``: further delay of a row after its launch.
    ``num_inferred``: number of dependencies between streams that were inferred from times.
    """

    before: list[tuple[int, ...]]
    delay_s: list[float]
    launching_s: list[float]
    num_inferred: int


def order_device(rank: RankTrace, host: Host, start_s: Floats, end_s: Floats) -> DeviceOrder:
    """Return the predecessors of a rank's rows.

    ``end_s``: when each row released its dependents, on the common clock.
    """
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
        """Return start and end of the call that launched a row; -inf if the trace does not state it."""
        call = self.host.launch[row]
        return (self.host.calls[call].start_s, self.host.calls[call].end_s) if call >= 0 else (-np.inf, -np.inf)

    def _launched(self) -> dict[str, tuple[list[float], list[int]]]:
        """Return, by stream, the launch times of its rows in order, and the rows."""
        rows = self.rank.rows
        found: dict[str, tuple[list[float], list[int]]] = {}
        known = np.flatnonzero(~np.isnan(rows.launch_s))
        for row in known[np.argsort(rows.launch_s[known], kind="stable")].tolist():
            times, numbers = found.setdefault(rows.stream.at(row), ([], []))
            times.append(float(rows.launch_s[row]))
            numbers.append(row)
        return found

    def _awaited(self, stream: str, launch_s: float) -> list[int]:
        """Return the rows that a stream was told to wait for between its previous launch and this one."""
        pending, found = self.waits.get(stream, []), []
        while pending and pending[-1].called_s <= launch_s:
            wait = pending.pop()
            times, numbers = self.launched.get(wait.other, ([], []))
            position = bisect_right(times, wait.recorded_s)
            found += numbers[position - 1 : position]
        return found

    def _inferred(self, row: int, stream: int, ready_s: float) -> list[int]:
        """Return the row of another stream that an unexplained start followed, if any."""
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
    """Return the delays after predecessors, and the further delays after launches.

    ``waited``: 1 for a row launched while its stream was busy, -1 for a row launched on an idle stream.
    """
    waiting_s = delay_s[waited > 0]
    gap_s = float(np.median(np.maximum(0.0, waiting_s))) if len(waiting_s) >= _LEAST_FOR_A_GAP else np.inf
    launching_s = np.where(waited < 0, np.maximum(0.0, delay_s - gap_s), 0.0)
    return (delay_s - launching_s).tolist(), launching_s.tolist()
