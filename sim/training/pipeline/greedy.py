"""The automatic zero-bubble schedule: a greedy order within a memory limit, for given durations."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from sim.training.pipeline.actions import Action, Order
from sim.training.pipeline.evaluate import Times, end_times, max_span_s
from sim.training.pipeline.placement import loop
from sim.training.pipeline.zero_bubble import zb_h1, zb_h2


class Preferences(NamedTuple):
    """Preferences of a rank that may choose between ready actions.

    ``backward_first``: if a forward and a backward are both ready, run the backward; else alternate the two kinds.
    ``fill_any_gap``: start a weight part even if a message is known to arrive before the weight part would end.
    ``rush``: run forwards up to the memory limit before the first backward; else P-r of them, as 1F1B.
    """

    backward_first: bool
    fill_any_gap: bool
    rush: bool


def zb_auto(num_ranks: int, num_microbatches: int, times: Times, max_live: int, *, barrier: bool = True) -> list[Order]:
    """Return the shortest order that greedy ranks find under any preferences, with one stage per rank.

    The shortest order has the earliest end of all ranks. Without a ``barrier`` between steps, ranks start the next step
    on their own, and the shortest order has the smallest time from any rank's first start to its last end. A rank
    starts the action that is ready. It runs a weight part where it would otherwise wait, or where ``max_live``
    micro-batches are in memory (forward begun, weight part not ended) and a forward could run. The design follows the
    automatic schedule of Qi et al. 2023, section 3, whose eight greedy variants these resemble. ZB-H1 and ZB-H2 are
    candidates too, where they fit the limit.
    """

    def length_s(orders: list[Order]) -> float:
        ends_s = end_times(orders, loop(num_ranks), times)
        return max(ends_s.values()) if barrier else max_span_s(orders, ends_s, times)

    return min(_candidates(num_ranks, num_microbatches, times, max_live), key=length_s)


def _candidates(p: int, m: int, times: Times, max_live: int) -> Iterator[list[Order]]:
    for flags in product((False, True), repeat=3):
        yield _Greedy(p, m, times, max_live, Preferences(*flags)).run()
    if max_live >= p:
        yield zb_h1(p, m)
    if max_live >= 2 * p - 1:
        yield zb_h2(p, m)


@dataclass(slots=True)
class _Rank:
    """A rank's progress: its order so far, the arrivals of its inputs, and the number of actions of each kind begun."""

    order: Order = field(default_factory=list)
    free_s: float = 0.0
    done: dict[str, int] = field(default_factory=lambda: {"F": 0, "I": 0, "W": 0})
    arrivals_s: dict[str, list[float]] = field(default_factory=lambda: {"F": [], "I": []})


@dataclass(slots=True)
class _Greedy:
    """Ranks that decide when they are free, from the messages that have arrived or are on their way."""

    num_ranks: int
    num_microbatches: int
    times: Times
    max_live: int
    preferences: Preferences
    ranks: list[_Rank] = field(init=False)
    wakes: list[tuple[float, int]] = field(init=False)

    def run(self) -> list[Order]:
        """Return every rank's order."""
        self.ranks = [_Rank() for _ in range(self.num_ranks)]
        self.ranks[0].arrivals_s["F"] = [0.0] * self.num_microbatches
        self.wakes = [(0.0, 0)]
        while self.wakes:
            now_s, index = heappop(self.wakes)
            rank = self.ranks[index]
            if rank.free_s <= now_s:
                kind = self._choice(index, rank, now_s)
                if kind:
                    self._start(index, rank, kind, now_s)
        return [rank.order for rank in self.ranks]

    def _choice(self, index: int, rank: _Rank, now_s: float) -> str:
        """Return the kind of action that a free rank starts now; "" means that it waits."""
        done, live = rank.done, rank.done["F"] - rank.done["W"]
        warmup = self.max_live if self.preferences.rush else min(self.max_live, self.num_ranks - index)
        may_forward = live < self.max_live and (done["I"] > 0 or done["F"] < warmup)
        next_s = {kind: self._arrival_s(rank, kind) for kind in "FI"}
        ready = [kind for kind in "FI" if next_s[kind] <= now_s and (kind == "I" or may_forward)]
        if ready == ["F", "I"]:
            last = next((a.kind for a in reversed(rank.order) if a.kind != "W"), "I")
            return "I" if self.preferences.backward_first or last == "F" else "F"
        full = live >= self.max_live and next_s["F"] <= now_s
        if done["W"] < done["I"] and (full or not ready) and (full or self._fits(index, now_s, next_s, may_forward)):
            return "W"
        return ready[0] if ready else ""

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
