"""Communication that shares links: sums of gradients beside the exchanges of passes, and sums over copies after them.

Where flows meet, each goes on at the speed at which its fullest link could serve all that use it, slowed alike. So what
a flow that is slowed elsewhere leaves of a link is lost, and the engine gives it to others.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDING_S: Final = 1e-12
"""Less than this is left to rounding of the time."""


class Flow(Struct, frozen=True, eq=False):
    """A latency, then a transfer that lasts ``seconds`` alone; link l is in use for the part ``use[l]`` of it."""

    latency_s: float
    seconds: float
    use: Floats


def flows_over(latencies_s: Floats, link_s: Floats) -> list[Flow]:
    """Return flows of these latencies [flow] that use links for so many seconds each [flow, link]."""
    seconds = link_s.max(1, initial=0.0)
    use = link_s / np.where(seconds > 0.0, seconds, 1.0)[:, None]
    return [Flow(*each) for each in zip(latencies_s.tolist(), seconds.tolist(), use, strict=True)]


class Busy(Struct, frozen=True, eq=False):
    """From when until when a flow used its links, and which part of them."""

    start_s: float
    end_s: float
    use: Floats


@dataclass
class Beside:
    """Flows that run one after the other beside others, such as sums of gradients. Begins at time 0.

    ``records``: what has been in use, also by the others, is added to ``busy``. ``ends_s``: of those that are over.
    """

    records: bool
    now_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    busy: list[Busy] = field(default_factory=list)
    _waiting: deque[tuple[float, Flow]] = field(default_factory=deque)
    _left_s: float = -1.0

    def add(self, ready_s: float, flow: Flow) -> None:
        """Let a flow begin after those before it, and not before a time."""
        self._waiting.append((ready_s, flow))

    @property
    def begins_s(self) -> float:
        """Return when the next or the present flow begins to use links; never, if there is none."""
        if not self._waiting:
            return inf
        ready_s, flow = self._waiting[0]
        return max(ready_s, self.ends_s[-1] if self.ends_s else 0.0) + flow.latency_s

    def advance(self, until_s: float) -> None:
        """Go on alone up to a time."""
        while (begins_s := max(self.begins_s, self.now_s)) < until_s:
            self._go(begins_s, min(until_s, begins_s + self._remaining_s), 1.0)
        self.now_s = max(self.now_s, until_s)

    def meet(self, other: Flow, start_s: float) -> float:
        """Return when another flow ends that starts at a time, and go on up to then."""
        self.advance(start_s + other.latency_s)
        left_s = other.seconds
        while left_s > _ROUNDING_S:
            begin_s = self.now_s
            if self.begins_s > begin_s:
                end_s, speed = min(begin_s + left_s, self.begins_s), 1.0
                self.now_s = end_s
            else:
                fullest = float((other.use + self._waiting[0][1].use).max())
                speed = 1.0 / max(1.0, fullest)
                end_s = begin_s + min(left_s, self._remaining_s) / speed
                self._go(begin_s, end_s, speed)
            self._record(begin_s, end_s, other, speed)
            left_s -= (end_s - begin_s) * speed
        return self.now_s

    def rest(self) -> list[tuple[float, Flow]]:
        """Return the flows that are not over, each with when it is ready; of the present one, what is left."""
        rest = list(self._waiting)
        if rest and self._left_s >= 0.0:
            rest[0] = (self.now_s, Flow(0.0, self._left_s, rest[0][1].use))
        return rest

    @property
    def _remaining_s(self) -> float:
        return self._left_s if self._left_s >= 0.0 else self._waiting[0][1].seconds

    def _go(self, begin_s: float, end_s: float, speed: float) -> None:
        """Let the present flow go on at a speed."""
        flow = self._waiting[0][1]
        self._record(begin_s, end_s, flow, speed)
        self._left_s = self._remaining_s - (end_s - begin_s) * speed
        self.now_s = end_s
        if self._left_s <= _ROUNDING_S:
            self._waiting.popleft()
            self.ends_s.append(end_s)
            self._left_s = -1.0

    def _record(self, begin_s: float, end_s: float, flow: Flow, speed: float) -> None:
        if self.records:
            self.busy.append(Busy(begin_s, end_s, flow.use * speed))


class Queued(Struct, frozen=True, eq=False):
    """A flow that takes its turn in some queues, by number, and begins when it is the first in all of them."""

    flow: Flow
    queues: tuple[int, ...]
    ready_s: float


def queue_ends_s(queued: Sequence[Queued], busy: list[Busy] | None = None) -> Floats:
    """Return when each of some flows ends, which take turns in their queues in this order.

    ``busy``: the list to which what was in use is added; None: to none.
    """
    ends_s, turns = np.zeros(len(queued)), dict[int, deque[int]]()
    for number, each in enumerate(queued):
        for queue in each.queues:
            turns.setdefault(queue, deque()).append(number)
    events, lacking = list[tuple[float, int]](), [len(each.queues) for each in queued]

    def arrive(number: int, now_s: float) -> None:
        lacking[number] -= 1
        if not lacking[number]:
            heappush(events, (max(now_s, queued[number].ready_s) + queued[number].flow.latency_s, number))

    for turn in turns.values():
        arrive(turn[0], 0.0)
    now_s, active, left_s = 0.0, list[int](), list[float]()
    while events or active:
        speeds = _speeds([queued[number].flow.use for number in active])
        spans_s = [left / speed for left, speed in zip(left_s, speeds, strict=True)]
        step_s = min([*spans_s, events[0][0] - now_s if events else inf])
        left_s = [left - step_s * speed for left, speed in zip(left_s, speeds, strict=True)]
        if busy is not None and active:
            used = sum((queued[n].flow.use * speed for n, speed in zip(active, speeds, strict=True)), np.zeros(1))
            busy.append(Busy(now_s, now_s + step_s, used))
        now_s += step_s
        over = [place for place, span_s in enumerate(spans_s) if span_s <= step_s * (1.0 + 1e-12)]
        for place in reversed(over):
            number = active.pop(place)
            left_s.pop(place)
            ends_s[number] = now_s
            for queue in queued[number].queues:
                turns[queue].popleft()
                if turns[queue]:
                    arrive(turns[queue][0], now_s)
        while events and events[0][0] <= now_s:
            _, number = heappop(events)
            active.append(number)
            left_s.append(queued[number].flow.seconds)
    return ends_s


def _speeds(uses: Sequence[Floats]) -> list[float]:
    """Return the speed of each of some flows that go on together."""
    if len(uses) < 2:
        return [1.0] * len(uses)
    table = np.stack(uses)
    fullest = np.where(table > 0.0, table.sum(0), 0.0).max(1)
    speeds: list[float] = (1.0 / np.maximum(fullest, 1.0)).tolist()
    return speeds
