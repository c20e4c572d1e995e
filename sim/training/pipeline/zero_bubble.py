"""Orders that split backward: inputs (I) at once, weights (W) where the rank would wait (Qi et al. 2023, 2024)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from sim.training.pipeline.actions import LETTERS, Order

_OF_OLDEST: Final = -1
"""The stage of a W that is that of the oldest I, until that is known."""


def zb_h1(num_ranks: int, num_microbatches: int, virtual_stages: int = 1) -> list[Order]:
    """ZB-H1; with v > 1 its interleaved form, as torch's ScheduleInterleavedZeroBubble.

    Rank r starts its first W after r more backwards. With one stage per rank, m >= P and tW <= min(tF, tB), the
    makespan is m(tF+tB+tW) + (P-1)(tF+tB-tW); every rank keeps P micro-batches until their W.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    group = m // max(1, m // p)
    every, orders = np.arange(m * v), []
    i = every // (group * v) * group + every % group
    chunk = every // group % v
    for r in range(p):
        warmup, back = min((v - 1) * group + p - 1 - r, m * v), (v - 1 - chunk) * p + r
        orders.append(
            Order.in_slots(
                (3 * (every - warmup), Order.alike("F", chunk * p + r, i)),
                (3 * every + 1, Order.alike("I", back, i)),
                (3 * (every + r) + 2, Order.alike("W", back, i)),
            )
        )
    return orders


def zb_h2(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """ZB-H2: 2(P-r)-1 forwards first, so that no rank waits between its first forwards and its last backward.

    With m >= 2P-1 and tW <= min(tF, tB), the longest rank span is m(tF+tB+tW) + (P-1)(tF+tB-2tW); 2P-1 micro-batches
    are in memory.
    """
    p, every, orders = num_ranks, np.arange(num_microbatches), []
    for r in range(p):
        first = min(2 * (p - r) - 1, num_microbatches)
        orders.append(
            Order.in_slots(
                (3 * every, Order.alike("I", r, every)),
                (3 * (every + 2 * r) + 1, Order.alike("W", r, every)),
                (3 * (every - first) + 2, Order.alike("F", r, every)),
            )
        )
    return orders


def zb_v(num_ranks: int, num_microbatches: int, _: int = 2) -> list[Order]:
    """ZB-V on the V placement, as torch's ScheduleZBVZeroBubble; for m < 2P-1, the order of m = 2P-1 cut down.

    With tF = tB = tW and m >= 2P-1 no rank waits between its first and last action; every rank keeps 2P chunks.
    """
    orders = []
    for r in range(num_ranks):
        order = _zb_v_of_rank(num_ranks, r, max(num_microbatches, 2 * num_ranks - 1))
        orders.append(order.taken(order.microbatches < num_microbatches))
    return orders


def _zb_v_of_rank(p: int, r: int, m: int) -> Order:
    queue = OrderWriter({"0": r, "1": 2 * p - 1 - r})
    queue.add("F0", 2 * (p - r) - 1)
    queue.add("F1 F0", r)
    queue.add("F1 I1 W1", p - r)
    left = m - queue.count("F0")
    queue.add("F0 I0 W0 F1 I1 W1", left)
    queue.add("I0 W0 F1 I1 W1", m - queue.count("F1"))
    queue.add("I0 I1", r)
    queue.add("I0 W0", p - r)
    queue.add("W1", m - queue.count("W1"))
    queue.add("W0", m - queue.count("W0"))
    return queue.order


class OrderWriter:
    """An order written from words: ``F0`` is the next forward of the rank's stage called 0.

    ``W0`` is the next W of a stage; ``W`` is the W of the oldest I of any stage, or nothing if there is none. In
    ``F0&B1`` the two actions overlap.
    ``stages``: the rank's stages by name.
    ``first``: the first micro-batch of each stage.
    """

    def __init__(self, stages: dict[str, int], first: dict[str, int] | None = None) -> None:
        self._blocks: list[Order] = []
        self._stages = stages
        self._first = first or dict.fromkeys(stages, 0)
        self._done: dict[str, int] = {}
        self._num_inputs = 0

    @property
    def order(self) -> Order:
        """Return the actions."""
        order = Order.joined(*self._blocks)
        inputs, weights = (order.kinds == LETTERS.index(kind) for kind in "IW")
        oldest = weights & (order.stages == _OF_OLDEST)
        of = np.flatnonzero(inputs)[: np.count_nonzero(oldest)]
        stages, microbatches = order.stages.copy(), order.microbatches.copy()
        stages[oldest], microbatches[oldest] = order.stages[of], order.microbatches[of]
        return replace(order, stages=stages, microbatches=microbatches)

    def count(self, word: str) -> int:
        """Return the number of actions added for a word; a B counts as an I."""
        return self._done.get(word, 0)

    def add(self, words: str, times: int = 1) -> None:
        """Add the actions of ``words`` in order, ``times`` times."""
        found = words.split()
        if "W" in found:
            found, times = list(self._possible(found * times)), 1
        if found and times > 0:
            self._add(found, times)

    def _possible(self, words: Iterable[str]) -> Iterator[str]:
        """Yield the words, each ``W`` only where there is an I without its W before it."""
        waiting = self._num_inputs - self.count("W")
        for word in words:
            if word != "W" or waiting:
                waiting += (word[0] == "I") - (word == "W")
                yield word

    def _add(self, words: Sequence[str], times: int) -> None:
        """Add words over and over."""
        parts = [part for word in words for part in word.split("&")]
        overlaps = [place == 0 and "&" in word for word in words for place, _ in enumerate(word.split("&"))]
        counters = [f"I{part[1:]}" if part[0] == "B" else part for part in parts]
        first = [
            (self._first[part[1:]] if part[1:] else 0) + self.count(counter) + counters[:place].count(counter)
            for place, (part, counter) in enumerate(zip(parts, counters, strict=True))
        ]
        later = np.array([counters.count(counter) for counter in counters]) * np.arange(times)[:, None]
        kinds = [LETTERS.index(part[0]) for part in parts]
        stages = [self._stages[part[1:]] if part[1:] else _OF_OLDEST for part in parts]
        repeated = [np.tile(column, times) for column in (kinds, stages, overlaps)]
        self._blocks.append(Order(repeated[0], repeated[1], (first + later).ravel(), repeated[2]))
        for part, counter in zip(parts, counters, strict=True):
            self._done[counter] = self.count(counter) + times
            self._num_inputs += times if part[0] == "I" else 0
