"""Whose turn it is: the order in which workers' requests reach the servers, under BSP, SSP and ASP."""

import heapq
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

Consistency = Literal["bsp", "ssp", "asp"]


class Turn(Struct, frozen=True):
    """A request of a worker: the rows of a step (``read``), or the changes that the step has made (``write``)."""

    worker: int
    step: int
    kind: Literal["read", "write"]


class Workers(Struct, frozen=True, kw_only=True):
    """Workers and their agreement on steps.

    ``bsp``: all write a step before any reads the next. ``asp``: nobody waits. ``ssp``: a worker may be ``slack``
    steps ahead of the slowest. ``relative_step_times``: of a step of each worker, beside each other.
    """

    consistency: Consistency
    relative_step_times: Sequence[float]
    slack: int = 0

    @property
    def num_workers(self) -> int:
        """Return how many workers there are."""
        return len(self.relative_step_times)

    def turns(self, num_steps: int) -> Iterator[Turn]:
        """Return the requests of so many steps of each worker, in the order in which servers see them.

        Without a barrier a worker's write and its next read go together. Of workers that come at the same time the
        first goes first, so that equal workers take turns.
        """
        return self._in_rounds(num_steps) if self.consistency == "bsp" else self._by_time(num_steps)

    def _in_rounds(self, num_steps: int) -> Iterator[Turn]:
        for step in range(num_steps):
            for worker in range(self.num_workers):
                yield Turn(worker, step, "read")
            for worker in range(self.num_workers):
                yield Turn(worker, step, "write")

    def _by_time(self, num_steps: int) -> Iterator[Turn]:
        """Return turns by the times at which workers end their steps; a worker too far ahead waits for the slowest."""
        written = [0] * self.num_workers
        waiting = list[int]()
        ends = [(0.0, worker, 0) for worker in range(self.num_workers)]
        while ends:
            now, worker, step = heapq.heappop(ends)
            if step:
                yield Turn(worker, step - 1, "write")
            written[worker] = step
            waiting.append(worker)
            slowest = min(written)
            ready = [one for one in waiting if self.consistency == "asp" or written[one] - slowest <= self.slack]
            waiting = [one for one in waiting if one not in ready]
            for one in ready:
                if written[one] < num_steps:
                    yield Turn(one, written[one], "read")
                    heapq.heappush(ends, (now + self.relative_step_times[one], one, written[one] + 1))
