"""Slots of a cache in the order in which they go: by batch, or by a count and then by batch."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.embedding.policies import Ints


class SlotQueue:
    """Slots that batches put in line, and the batch that each counts from.

    A slot that a later batch puts in line again leaves its earlier place. Each place is looked at once: the work is
    that of the slots put in line, however many there are.
    """

    def __init__(self, num_slots: int) -> None:
        self._batch_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._is_kept = np.zeros(num_slots, dtype=np.bool_)
        self._line = deque[tuple[int, Ints]]()

    def put(self, slots: Ints, batch: int) -> None:
        """Put slots at the end of the line, in this order."""
        self._batch_of_slot[slots] = batch
        self._line.append((batch, slots))

    def take(self, num_slots: int, kept: Ints) -> Ints:
        """Return the first slots of the line without those ``kept``, which stay where they are."""
        self._is_kept[kept] = True
        taken, stay = list[Ints](), list[tuple[int, Ints]]()
        while num_slots:
            batch, slots = self._line.popleft()
            waiting = slots[self._batch_of_slot[slots] == batch]
            may_go = ~self._is_kept[waiting]
            going = waiting[may_go][:num_slots]
            taken.append(going)
            num_slots -= len(going)
            stay.append((batch, waiting[_without_first(may_go, len(going))]))
        self._line.extendleft(reversed([(batch, slots) for batch, slots in stay if len(slots)]))
        self._is_kept[kept] = False
        return np.concatenate([np.empty(0, dtype=np.int64), *taken])


class CountedQueue:
    """Slots by a count below ``most``, and of each count in the order of batches; slots of larger counts in no line.

    A slot that a later batch puts in line again leaves its earlier place. Each place is looked at once or twice.
    """

    def __init__(self, num_slots: int, most: int) -> None:
        self._num_slots = num_slots
        self._count_of_slot = np.full(num_slots, most, dtype=np.int64)
        self._batch_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._lines = [deque[tuple[int, Ints]]() for _ in range(most)]
        self._lengths = [0] * most

    def put(self, slots: Ints, counts: Ints, batch: int) -> None:
        """Put slots at the end of the lines of their counts, in this order."""
        self._count_of_slot[slots], self._batch_of_slot[slots] = counts, batch
        low = np.flatnonzero(counts < len(self._lines))
        order = low[np.argsort(counts[low], kind="stable")]
        ends = np.searchsorted(counts[order], np.arange(len(self._lines) + 1)).tolist()
        for count, (first, last) in enumerate(pairwise(ends)):
            if first < last:
                self._lines[count].append((batch, slots[order[first:last]]))
                self._lengths[count] += last - first
                if self._lengths[count] > 2 * self._num_slots:
                    self._tidy(count)

    def take(self, num_slots: int, used: Ints) -> Ints:
        """Return the first slots of the smallest counts without those ``used``, at most so many.

        Used slots leave their places: they must be put in line again.
        """
        self._batch_of_slot[used] = -2
        taken = [np.empty(0, dtype=np.int64)]
        for count, line in enumerate(self._lines):
            while line and num_slots:
                batch, slots = line.popleft()
                self._lengths[count] -= len(slots)
                waiting = self._waiting(count, batch, slots)
                taken.append(waiting[:num_slots])
                if len(waiting) > num_slots:
                    line.appendleft((batch, waiting[num_slots:]))
                    self._lengths[count] += len(waiting) - num_slots
                num_slots -= len(taken[-1])
        return np.concatenate(taken)

    def _waiting(self, count: int, batch: int, slots: Ints) -> Ints:
        """Return the slots that a batch has put in the line of a count, and that are still there."""
        is_there = (self._batch_of_slot[slots] == batch) & (self._count_of_slot[slots] == count)
        found: Ints = slots[is_there]
        return found

    def _tidy(self, count: int) -> None:
        """Drop places that slots have left from a line."""
        places: Iterator[tuple[int, Ints]] = ((b, self._waiting(count, b, slots)) for b, slots in self._lines[count])
        self._lines[count] = deque((batch, slots) for batch, slots in places if len(slots))
        self._lengths[count] = sum(len(slots) for _, slots in self._lines[count])


def _without_first(marked: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return where no mark is, or one after the first ``count`` marks."""
    is_later: NDArray[np.bool_] = ~marked | (np.cumsum(marked) > count)
    return is_later
