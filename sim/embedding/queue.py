"""Slots of a cache in the order of batches: the earliest go first."""

from collections import deque

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


def _without_first(marked: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return where no mark is, or one after the first ``count`` marks."""
    is_later: NDArray[np.bool_] = ~marked | (np.cumsum(marked) > count)
    return is_later
