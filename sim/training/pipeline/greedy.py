"""The automatic zero-bubble schedule: a greedy order within a memory limit, for given durations."""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from msgspec import Struct, field

from sim.training.pipeline.actions import Action, Order
from sim.training.pipeline.evaluate import Times, end_times, max_span_s
from sim.training.pipeline.placement import loop
from sim.training.pipeline.zero_bubble import zb_h1, zb_h2


class WarmUp(StrEnum):
    """The forwards of a rank before its first backward: as many as in 1F1B, or as many as fit in until it can start."""

    AS_1F1B = "as 1f1b"
    NO_LATER = "no later"
    NO_GAP = "no gap"


class Preferences(NamedTuple):
    """Preferences of a rank that may choose between ready actions.

    ``backward_first``: if a forward and a backward are both ready, run the backward; else alternate the two kinds.
    ``fill_any_gap``: start a weight part even if a message is known to arrive before the weight part would end.
    ``warm_up``: ``NO_GAP``: the last of the forwards before the first backward may delay it.
    """

    backward_first: bool
    fill_any_gap: bool
    warm_up: WarmUp


class Limit(NamedTuple):
    """The memory of a rank, in micro-batches; of each, ``kept_for_weights`` stays until its weight part ends.

    The rest is free when the backward for inputs has ended.
    """

    max_live: int
    kept_for_weights: float = 1.0

    def leaves_room(self, done: Mapping[str, int]) -> bool:
        """Return whether another forward may begin, after so many actions of each kind."""
        kept = done["F"] - done["I"] + self.kept_for_weights * (done["I"] - done["W"])
        return kept + 1.0 <= self.max_live + 1e-9


def zb_auto(num_ranks: int, num_microbatches: int, times: Times, limit: Limit, *, barrier: bool = True) -> list[Order]:
    """Return the shortest order that greedy ranks find under any preferences, with one stage per rank.

    The shortest order has the earliest end of all ranks. Without a ``barrier`` between steps, ranks start the next step
    on their own, and the shortest order has the smallest time from any rank's first start to its last end. A rank
    starts the action that is ready. It runs a weight part where it would otherwise wait, or where no other forward
    fits the limit. The design follows the search of Qi et al. 2023, section 3.1, whose choices of a warm-up and of what
    fills gaps these are; with its times and its memory the bubbles are those of its table. ZB-H1 and ZB-H2 are
    candidates too, where they fit the limit.

    With all of a micro-batch kept until its weight part (1.0) no order without a barrier has a bubble below
    (P-1)(F + I + 2 hop) - (L-1) W for L micro-batches: the last rank runs its last backward after at least m - L weight
    parts, and the first rank's last backward comes P-1 hops later.
    """

    def length_s(orders: list[Order]) -> float:
        ends_s = end_times(orders, loop(num_ranks), times)
        return max(ends_s.values()) if barrier else max_span_s(orders, ends_s, times)

    return min(_candidates(num_ranks, num_microbatches, times, limit), key=length_s)


def _candidates(p: int, m: int, times: Times, limit: Limit) -> Iterator[list[Order]]:
    for backward_first, fill_any_gap, warm_up in product((False, True), (False, True), WarmUp):
        yield _Greedy(p, m, times, limit, Preferences(backward_first, fill_any_gap, warm_up)).run()
    if limit.max_live >= p:
        yield zb_h1(p, m)
    if limit.max_live >= 2 * p - 1:
        yield zb_h2(p, m)


class _Rank(Struct, eq=False):
    """A rank's progress: its order so far, the arrivals of its inputs, and the number of actions of each kind begun."""

    order: list[Action] = []
    free_s: float = 0.0
    done: dict[str, int] = field(default_factory=lambda: {"F": 0, "I": 0, "W": 0})
    arrivals_s: dict[str, list[float]] = field(default_factory=lambda: {"F": [], "I": []})


class _Greedy:
    """Ranks that decide when they are free, from the messages that have arrived or are on their way."""

    def __init__(
        self, num_ranks: int, num_microbatches: int, times: Times, limit: Limit, preferences: Preferences
    ) -> None:
        self.num_ranks, self.num_microbatches, self.times = num_ranks, num_microbatches, times
        self.limit, self.preferences = limit, preferences
        self.ranks = [_Rank() for _ in range(num_ranks)]
        self.ranks[0].arrivals_s["F"] = [0.0] * num_microbatches
        self.wakes = [(0.0, 0)]
        self.warm_ups = [self._warm_up(index) for index in range(num_ranks)]

    def run(self) -> list[Order]:
        """Return every rank's order."""
        while self.wakes:
            now_s, index = heappop(self.wakes)
            rank = self.ranks[index]
            if rank.free_s <= now_s:
                kind = self._choice(index, rank, now_s)
                if kind:
                    self._start(index, rank, kind, now_s)
        return [Order.of(rank.order) for rank in self.ranks]

    def _warm_up(self, index: int) -> int:
        """Return how many forwards a rank runs before its first backward, where the limit lets it."""
        fewest = self.num_ranks - index
        if self.preferences.warm_up is WarmUp.AS_1F1B:
            return fewest
        later = range(index + 1, self.num_ranks)
        there_and_back_s = sum(self.times.duration_s(Action(kind, stage, 0)) for stage in later for kind in "FI")
        there_and_back_s += 2 * len(later) * self.times.hop_s
        more = there_and_back_s / max(self.times.duration_s(Action("F", index, 0)), 1e-12)
        whole = math.ceil(more - 1e-9) if self.preferences.warm_up is WarmUp.NO_GAP else math.floor(more + 1e-9)
        return max(fewest, 1 + min(whole, self.num_microbatches))

    def _choice(self, index: int, rank: _Rank, now_s: float) -> str:
        """Return the kind of action that a free rank starts now; "" means that it waits."""
        done, has_room = rank.done, self.limit.leaves_room(rank.done)
        may_forward = has_room and (done["I"] > 0 or done["F"] < self.warm_ups[index])
        next_s = {kind: self._arrival_s(rank, kind) for kind in "FI"}
        ready = [kind for kind in "FI" if next_s[kind] <= now_s and (kind == "I" or may_forward)]
        if ready == ["F", "I"]:
            last = next((a.kind for a in reversed(rank.order) if a.kind != "W"), "I")
            return "I" if self.preferences.backward_first or last == "F" else "F"
        if ready:
            return ready[0]
        full = not has_room and next_s["F"] <= now_s
        waits_for_weights = done["W"] < done["I"] and (full or self._fits(index, now_s, next_s, may_forward))
        return "W" if waits_for_weights else ""

    def _fits(self, index: int, now_s: float, next_s: dict[str, float], may_forward: bool) -> bool:
        """Return whether a weight part ends before anything known to arrive could start."""
        known = min(next_s["I"], next_s["F"] if may_forward else float("inf"))
        return self.preferences.fill_any_gap or now_s + self.times.duration_s(Action("W", index, 0)) <= known

    @staticmethod
    def _arrival_s(rank: _Rank, kind: str) -> float:
        arrivals, index = rank.arrivals_s[kind], rank.done[kind]
        return arrivals[index] if index < len(arrivals) else float("inf")

    def _start(self, index: int, rank: _Rank, kind: str, now_s: float) -> None:
        action = Action(kind, index, rank.done[kind])
        rank.order.append(action)
        rank.done[kind] += 1
        rank.free_s = end_s = now_s + self.times.duration_s(action)
        heappush(self.wakes, (end_s, index))
        if kind == "F" and index == self.num_ranks - 1:
            rank.arrivals_s["I"].append(end_s)
        target = index + (kind == "F") - (kind == "I")
        if kind != "W" and target != index and 0 <= target < self.num_ranks:
            arrival_s = end_s + self.times.hop_s
            self.ranks[target].arrivals_s[kind].append(arrival_s)
            heappush(self.wakes, (arrival_s, target))
