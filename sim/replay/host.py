"""The calls of one rank's host that launched work on the device or waited for it, and their predecessors.

A call follows one other call: the previous call of its own thread, or the last call that any thread began since (so the
threads of forward and backward hand over to each other). The time between the two is the host's own time. A call that
waits for the device also follows the last work that ended before the call returned.
"""

import re
from bisect import bisect_right
from typing import Final

import numpy as np
from msgspec import Struct

from traces.kineto.document import NO_CORRELATION
from traces.kineto.rank import DeviceRows, Flags, Indices, RankTrace
from traces.timeline import Floats

WAITING: Final = re.compile(r"(Device|Stream|Event|Ctx)Synchronize")
WHOLE_DEVICE: Final = re.compile(r"(Device|Ctx)Synchronize")
COPY: Final = re.compile(r"Memcpy")
RETURNS_WITHIN_S: Final = 50e-6
"""Longest time from a copy's end to the return of a call that waited for the copy."""


class HostCall(Struct, frozen=True):
    """A call, in seconds on the common clock.

    ``before``: the call that it follows (-1: none).
    ``returned``: it follows that call's return; else that call's start.
    ``rows``: the rows that it waits for.
    """

    start_s: float
    end_s: float
    before: int
    returned: bool
    rows: tuple[int, ...]


class Host(Struct, frozen=True):
    """Calls by start; ``launch[row]``: the call that launched a row (-1: the trace does not state it)."""

    calls: tuple[HostCall, ...]
    launch: list[int]

    def moved(self, by_s: float) -> "Host":
        """Return the same calls with times shifted by ``by_s``."""
        calls = (HostCall(c.start_s + by_s, c.end_s + by_s, c.before, c.returned, c.rows) for c in self.calls)
        return Host(tuple(calls), self.launch)


def read_host(rank: RankTrace, shift_s: float) -> Host:
    """Return the calls that launched a rank's rows or waited for them; ``shift_s`` is added to all times."""
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
    """Return the starts of the first and the last launch; (inf, -inf) without launches."""
    chosen = start_s[launches]
    return (float(chosen.min()), float(chosen.max())) if len(chosen) else (np.inf, -np.inf)


def _before(calls: list[HostCall], own: int, start_s: float) -> int:
    """Return the predecessor of the next call.

    The last call, or the own thread's call if that outlasted the last's start.
    """
    last = len(calls) - 1
    if own < 0 or last == own:
        return last
    return own if calls[last].start_s < calls[own].end_s <= start_s else last


class _WaitedRows:
    """The rows that calls waited for."""

    def __init__(self, rank: RankTrace) -> None:
        self._spans, self._rows = rank.launches, rank.rows
        self._copies = {int(c): row for row, c in enumerate(rank.rows.correlation.tolist()) if c != NO_CORRELATION}
        launched = np.flatnonzero(~np.isnan(rank.rows.launch_s))
        codes = rank.rows.stream.codes[launched]
        self._all = _ByEnd.of(rank.rows, launched)
        self._streams = [_ByEnd.of(rank.rows, launched[codes == code]) for code in np.unique(codes).tolist()]

    def rows(self, span: int) -> tuple[int, ...]:
        """Return the rows that a call waited for; empty for a call that only launches."""
        name, end_s = self._spans.name.at(span), float(self._spans.end_s[span])
        if WAITING.search(name):
            start_s = float(self._spans.start_s[span])
            queues = self._streams if WHOLE_DEVICE.search(name) else [self._all]
            return tuple(row for queue in queues if (row := queue.last(start_s, end_s)) >= 0)
        copy = self._copies.get(int(self._spans.correlation[span]), -1)
        if copy >= 0 and COPY.search(name) and 0.0 <= end_s - self._rows.end_s[copy] <= RETURNS_WITHIN_S:
            return (copy,)
        return ()


class _ByEnd(Struct, frozen=True):
    """Rows sorted by end, with their ends and launch times."""

    rows: list[int]
    end_s: list[float]
    launch_s: list[float]

    @classmethod
    def of(cls, rows: DeviceRows, chosen: Indices) -> "_ByEnd":
        """Return the chosen rows sorted by end; of rows that end together, the first row comes last."""
        ordered = chosen[np.lexsort((-chosen, rows.end_s[chosen]))]
        return cls(ordered.tolist(), rows.end_s[ordered].tolist(), rows.launch_s[ordered].tolist())

    def last(self, called_s: float, until_s: float) -> int:
        """Return the row that ended last by ``until_s`` among those launched before a call, -1 for none."""
        place = bisect_right(self.end_s, until_s) - 1
        while place >= 0 and not self.launch_s[place] < called_s:
            place -= 1
        return self.rows[place] if place >= 0 else -1
