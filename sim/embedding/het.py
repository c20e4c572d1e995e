"""Clocks of embedding rows: the protocol of HET (VLDB 2022), without the values of the rows.

Servers hold every row, and workers cache some. A row's clock counts its updates: the server's clock those that it has
applied, a worker's clock those that its copy includes. A copy may lack at most ``read_bound`` updates that the server
has, and a worker keeps at most ``write_bound`` of its own to itself. The rules are those of HET's code (Hetu,
src/hetu_cache): a copy is fetched again where it lacks *more* than the bound, and changes are pushed where they are
*more* than the bound.

    worker, server = WorkerClocks(cache, clocking), ServerClocks(num_rows)
    read = worker.look_up(cache.prepare(ids))               # what it asks the servers
    worker.receive(read, server.answer(read, clocking.read_bound))
    server.apply(worker.write(read))                        # after the gradients of these rows

Both the simulation and torch's processes go through these calls.
"""

from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache, Prepared
from sim.embedding.policies import Ints

NEVER_FETCHED: Final = -1


class Clocking(Struct, frozen=True, kw_only=True):
    """How far copies may differ: updates that a copy may lack, and own updates that a worker may keep to itself.

    ``counted``: an update is a step that changes a row, or each of the step's lookups of it (as HET's code counts).
    """

    read_bound: int
    write_bound: int
    counted: Literal["step", "lookup"] = "step"


class Read(Struct, frozen=True, kw_only=True):
    """What a worker asks of the servers for a batch: its different rows, and the clock of its copy of each.

    ``evicted``, ``evicted_updates``: rows that gave way with changes that no server has yet, and their number of
    updates; they go with the batch's pushes. ``evicted_slots``: the slots that they lay in.
    """

    found: Prepared
    clocks: Ints
    evicted: Ints
    evicted_updates: Ints
    evicted_slots: Ints


class Answer(Struct, frozen=True, kw_only=True):
    """Which of the rows that were asked for a server sends, in the order of the request, and their clocks."""

    is_sent: NDArray[np.bool_]
    clocks: Ints


class Push(Struct, frozen=True, kw_only=True):
    """Changes that a worker sends: rows, their number of updates, and the slots that they lie in.

    The last ``num_evicted`` rows have left the cache.
    """

    rows: Ints
    updates: Ints
    slots: Ints
    num_evicted: int


class ServerClocks:
    """Clocks of all rows: how many updates the servers have applied to each."""

    def __init__(self, num_rows: int) -> None:
        self.clocks = np.zeros(num_rows, dtype=np.int64)

    def answer(self, rows: Ints, clocks: Ints, read_bound: int) -> Answer:
        """Return the rows to send: those never fetched, and those whose copy lacks more updates than the bound."""
        now = self.clocks[rows]
        is_sent = (clocks == NEVER_FETCHED) | (now - clocks > read_bound)
        return Answer(is_sent=is_sent, clocks=now[is_sent])

    def apply(self, push: Push) -> None:
        """Count the updates of a push."""
        self.clocks[push.rows] += push.updates


class WorkerClocks:
    """A worker's cache of rows: the clock of each copy, and the updates that the servers do not have yet."""

    def __init__(self, cache: BatchCache, clocking: Clocking) -> None:
        self._cache, self._clocking = cache, clocking
        num_slots = len(cache.row_of_slot)
        self._clocks = np.where(cache.row_of_slot >= 0, 0, NEVER_FETCHED)
        self._updates = np.zeros(num_slots, dtype=np.int64)

    def look_up(self, found: Prepared) -> Read:
        """Return what a batch asks for. ``found``: what its cache has found and moved; each batch once, in order."""
        updates = self._updates[found.slots_out]
        is_changed = updates > 0
        self._updates[found.slots_in] = 0
        self._clocks[found.slots_in] = NEVER_FETCHED
        return Read(
            found=found,
            clocks=self._clocks[found.slots],
            evicted=found.rows_out[is_changed],
            evicted_updates=updates[is_changed],
            evicted_slots=found.slots_out[is_changed],
        )

    def receive(self, read: Read, answer: Answer) -> None:
        """Take the clocks of rows that servers have sent."""
        self._clocks[read.found.slots[answer.is_sent]] = answer.clocks

    def write(self, read: Read) -> Push:
        """Return the changes to push after a batch has updated its rows: those above the bound, and evicted ones."""
        slots = read.found.slots
        updates = self._updates[slots] + (1 if self._clocking.counted == "step" else read.found.lookups)
        is_pushed = updates > self._clocking.write_bound
        self._clocks[slots] += np.where(is_pushed, updates, 0)
        self._updates[slots] = np.where(is_pushed, 0, updates)
        return Push(
            rows=np.concatenate((read.found.rows[is_pushed], read.evicted)),
            updates=np.concatenate((updates[is_pushed], read.evicted_updates)),
            slots=np.concatenate((slots[is_pushed], read.evicted_slots)),
            num_evicted=len(read.evicted),
        )

    def flush(self) -> Push:
        """Return all changes that the servers do not have yet, for the end of a training."""
        slots = np.flatnonzero(self._updates)
        updates = self._updates[slots]
        self._clocks[slots] += updates
        self._updates[slots] = 0
        return Push(rows=self._cache.row_of_slot[slots], updates=updates, slots=slots, num_evicted=0)
