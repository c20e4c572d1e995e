"""Orders that split backward: inputs (I) at once, weights (W) where the rank would wait (Qi et al. 2023, 2024)."""

from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from sim.integers import Ints
from sim.training.pipeline.actions import LETTERS, Order, Part, orders_in_slots

_OF_OLDEST: Final = -1
"""The stage of a W that is that of the oldest I, until that is known."""
_SAME_ON_RANKS: Final = ("kind", "step", "overlaps")


def zb_h1(num_ranks: int, num_microbatches: int, virtual_stages: int = 1) -> list[Order]:
    """ZB-H1; with v > 1 its interleaved form, as torch's ScheduleInterleavedZeroBubble.

    Rank r starts its first W after r more backwards. With one stage per rank, m >= P and tW <= min(tF, tB), the
    makespan is m(tF+tB+tW) + (P-1)(tF+tB-tW); every rank keeps P micro-batches until their W.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    group = m // max(1, m // p)
    every, rank = np.arange(m * v), np.arange(p)[:, None]
    i = every // (group * v) * group + every % group
    chunk = every // group % v
    warmup, back = np.minimum((v - 1) * group + p - 1 - rank, m * v), (v - 1 - chunk) * p + rank
    return orders_in_slots(
        Part("F", 3 * (every - warmup), chunk * p + rank, i),
        Part("I", np.broadcast_to(3 * every + 1, back.shape), back, i),
        Part("W", 3 * (every + rank) + 2, back, i),
    )


def zb_h2(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """ZB-H2: 2(P-r)-1 forwards first, so that no rank waits between its first forwards and its last backward.

    With m >= 2P-1 and tW <= min(tF, tB), the longest rank span is m(tF+tB+tW) + (P-1)(tF+tB-2tW); 2P-1 micro-batches
    are in memory.
    """
    every, rank = np.arange(num_microbatches), np.arange(num_ranks)[:, None]
    first = np.minimum(2 * (num_ranks - rank) - 1, num_microbatches)
    return orders_in_slots(
        Part("I", np.broadcast_to(3 * every, (num_ranks, num_microbatches)), rank, every),
        Part("W", 3 * (every + 2 * rank) + 1, rank, every),
        Part("F", 3 * (every - first) + 2, rank, every),
    )


def zb_v(num_ranks: int, num_microbatches: int, _: int = 2) -> list[Order]:
    """ZB-V on the V placement, as torch's ScheduleZBVZeroBubble; for m < 2P-1, the order of m = 2P-1 cut down.

    With tF = tB = tW and m >= 2P-1 no rank waits between its first and last action; every rank keeps 2P chunks.
    """
    p, m, r = num_ranks, max(num_microbatches, 2 * num_ranks - 1), np.arange(num_ranks)
    writer = OrdersWriter({"0": r, "1": 2 * p - 1 - r})
    writer.add("F0", 2 * (p - r) - 1)
    writer.add("F1 F0", r)
    writer.add("F1 I1 W1", p - r)
    left = m - writer.count("F0")
    writer.add("F0 I0 W0 F1 I1 W1", left)
    writer.add("I0 W0 F1 I1 W1", m - writer.count("F1"))
    writer.add("I0 I1", r)
    writer.add("I0 W0", p - r)
    writer.add("W1", m - writer.count("W1"))
    writer.add("W0", m - writer.count("W0"))
    whole = m == num_microbatches
    return [order if whole else order.taken(order.microbatches < num_microbatches) for order in writer.orders]


class _Word(Struct, frozen=True):
    """An action of a phase. ``first``: its first micro-batch on every rank; ``step``: to that of its next turn."""

    kind: int
    stages: Ints
    first: Ints
    step: int
    overlaps: bool


class OrdersWriter:
    """The orders of all ranks, written in phases of words: ``F0`` is the next forward of a rank's stage called 0.

    ``W0`` is the next W of a stage; ``W`` is the W of the oldest I of any stage, of which each has one. In ``F0&B1``
    the two actions overlap.
    ``stages``: every rank's stages by name.
    ``first``: every rank's first micro-batch of each stage.
    """

    def __init__(self, stages: dict[str, Ints], first: dict[str, Ints] | None = None) -> None:
        self._zeros = np.zeros_like(next(iter(stages.values())))
        self._stages = stages
        self._first = first or dict.fromkeys(stages, self._zeros)
        self._phases: list[tuple[list[_Word], Ints]] = []
        self._done: dict[str, Ints] = {}

    def count(self, word: str) -> Ints:
        """Return the number of actions that every rank has for a word; a B counts as an I."""
        return self._done.get(word, self._zeros)

    def add(self, words: str, times: Ints) -> None:
        """Add the actions of ``words`` in order, on every rank so many ``times``."""
        times = np.maximum(times, 0)
        overlaps = [place == 0 and "&" in word for word in words.split() for place, _ in enumerate(word.split("&"))]
        parts = words.replace("&", " ").split()
        counters = [f"I{part[1:]}" if part[0] == "B" else part for part in parts]
        phase = []
        for place, (part, counter, overlap) in enumerate(zip(parts, counters, overlaps, strict=True)):
            stages = self._stages.get(part[1:], self._zeros + _OF_OLDEST)
            first = self.count(counter) + self._first.get(part[1:], 0) + counters[:place].count(counter)
            phase.append(_Word(LETTERS.index(part[0]), stages, first, counters.count(counter), overlap))
        self._phases.append((phase, times))
        for counter in counters:
            self._done[counter] = self.count(counter) + times

    @property
    def orders(self) -> list[Order]:
        """Return every rank's actions."""
        words = [word for phase, _ in self._phases for word in phase]
        sizes = np.array([len(phase) for phase, _ in self._phases])
        lengths = np.stack([times for _, times in self._phases], axis=1) * sizes
        blocks = np.repeat(np.arange(lengths.size), lengths.ravel())
        rank, phase = (column[blocks] for column in np.divmod(np.arange(lengths.size), len(sizes)))
        place = np.arange(len(blocks)) - (np.cumsum(lengths) - lengths.ravel())[blocks]
        turn, place = np.divmod(place, sizes[phase])
        at = (np.cumsum(sizes) - sizes)[phase] + place
        kinds, steps, overlaps = (np.array([getattr(word, name) for word in words]) for name in _SAME_ON_RANKS)
        stages, first = (np.stack([getattr(word, name) for word in words])[at, rank] for name in ("stages", "first"))
        order = _with_oldest(Order(kinds[at], stages, first + steps[at] * turn, overlaps[at]))
        stops = np.cumsum(lengths.sum(axis=1)).tolist()
        return [order[begin:stop] for begin, stop in pairwise([0, *stops])]


def _with_oldest(order: Order) -> Order:
    """Return all ranks' actions with the stage and the micro-batch of every W that is that of the oldest I."""
    oldest = order.stages == _OF_OLDEST
    of = np.flatnonzero((order.kinds == LETTERS.index("I")) & oldest.any())
    order.stages[oldest], order.microbatches[oldest] = order.stages[of], order.microbatches[of]
    return order
