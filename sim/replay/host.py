"""The calls of one rank's host that launched work on the device or waited for it, and their predecessors.

A call comes after one other: the call before it on its own thread, or the last one that any thread began meanwhile (so
the threads of forward and backward hand over to each other). What lies between is the host's own time. A call that
waits for the device also comes after the last work that ended before the call returned.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from traces.kineto.document import NO_CORRELATION
from traces.kineto.rank import DeviceRows, Flags, Indices, RankTrace
from traces.timeline import Floats

WAITING: Final = re.compile(r"(Device|Stream|Event|Ctx)Synchronize")
WHOLE_DEVICE: Final = re.compile(r"(Device|Ctx)Synchronize")
COPY: Final = re.compile(r"Memcpy")
RETURNS_WITHIN_S: Final = 50e-6
"""A copy's call that returns after the copy has ended, by no more than this, waited for it."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call, in seconds on the common clock: ``before`` is the call that it comes after (-1: none), ``returned``
    whether after its return (else after its start). ``rows`` are those it waits for.
    """

    start_s: float
    end_s: float
    before: int
    returned: bool
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """Calls by start; ``launch[row]`` is the call that launched a row (-1: the trace does not say)."""

    calls: tuple[HostCall, ...]
    launch: list[int]

    def moved(self, by_s: float) -> "Host":
        """Return the same calls on a clock that shows more."""
        calls = (HostCall(c.start_s + by_s, c.end_s + by_s, c.before, c.returned, c.rows) for c in self.calls)
        return Host(tuple(calls), self.launch)


def read_host(rank: RankTrace, shift_s: float) -> Host:
    """Return the calls that matter to a rank's rows; ``shift_s`` is added to its times."""
    spans, rows = rank.launches, rank.rows
    waits = np.array([bool(WAITING.search(name)) for name in spans.name.values] or [False])[spans.name.codes]
    launches = np.isin(spans.correlation, rows.correlation) & (spans.correlation != NO_CORRELATION)
    first, last = _window(spans.start_s, launches)
    chosen = np.flatnonzero(launches | (waits & (spans.start_s >= first) & (spans.start_s <= last)))
    chosen = chosen[np.argsort(spans.start_s[chosen], kind="stable")]
    position_of = {int(spans.correlation[span]): at for at, span in enumerate(chosen.tolist()) if launches[span]}
    launch = [position_of.get(correlation, -1) for correlation in rows.correlation.tolist()]
    waited = _WaitedRows(rank)
    calls: list[HostCall] = []
    last_of: dict[int, int] = {}
    for position, span in enumerate(chosen.tolist()):
        start_s, thread = float(spans.start_s[span]), int(spans.thread[span])
        before = _before(calls, last_of.get(thread, -1), start_s + shift_s)
        returned = before >= 0 and calls[before].end_s <= start_s + shift_s
        held = waited.rows(span)
        calls.append(HostCall(start_s + shift_s, float(spans.end_s[span]) + shift_s, before, returned, held))
        last_of[thread] = position
    return Host(tuple(calls), launch)


def _window(start_s: Floats, launches: Flags) -> tuple[float, float]:
    """Return when the first and the last launch began: (inf, -inf) without any."""
    chosen = start_s[launches]
    return (float(chosen.min()), float(chosen.max())) if len(chosen) else (np.inf, -np.inf)


def _before(calls: list[HostCall], own: int, start_s: float) -> int:
    """Return what the next call comes after: the last call, unless that began while the own thread's was not over."""
    last = len(calls) - 1
    if own < 0 or last == own:
        return last
    return own if calls[last].start_s < calls[own].end_s <= start_s else last


class _WaitedRows:
    """Says which rows a call waited for."""

    def __init__(self, rank: RankTrace) -> None:
        self._spans, self._rows = rank.launches, rank.rows
        self._copies = {int(c): row for row, c in enumerate(rank.rows.correlation.tolist()) if c != NO_CORRELATION}
        launched = np.flatnonzero(~np.isnan(rank.rows.launch_s))
        codes = rank.rows.stream.codes[launched]
        self._all = _ByEnd.of(rank.rows, launched)
        self._streams = [_ByEnd.of(rank.rows, launched[codes == code]) for code in np.unique(codes).tolist()]

    def rows(self, span: int) -> tuple[int, ...]:
        """Return the rows that a call waited for: none for a call that only launches."""
        name, end_s = self._spans.name.at(span), float(self._spans.end_s[span])
        if WAITING.search(name):
            start_s = float(self._spans.start_s[span])
            queues = self._streams if WHOLE_DEVICE.search(name) else [self._all]
            return tuple(row for queue in queues if (row := queue.last(start_s, end_s)) >= 0)
        copy = self._copies.get(int(self._spans.correlation[span]), -1)
        if copy >= 0 and COPY.search(name) and 0.0 <= end_s - self._rows.end_s[copy] <= RETURNS_WITHIN_S:
            return (copy,)
        return ()


@dataclass(frozen=True, slots=True)
class _ByEnd:
    """Rows by end, and when each ended and was launched."""

    rows: list[int]
    end_s: list[float]
    launch_s: list[float]

    @classmethod
    def of(cls, rows: DeviceRows, chosen: Indices) -> "_ByEnd":
        """Return the chosen rows by end; of those that end at once the first is the last."""
        ordered = chosen[np.lexsort((-chosen, rows.end_s[chosen]))]
        return cls(ordered.tolist(), rows.end_s[ordered].tolist(), rows.launch_s[ordered].tolist())

    def last(self, called_s: float, until_s: float) -> int:
        """Return the row that was launched before a call and ended last until a moment, -1 for none."""
        place = bisect_right(self.end_s, until_s) - 1
        while place >= 0 and not self.launch_s[place] < called_s:
            place -= 1
        return self.rows[place] if place >= 0 else -1
