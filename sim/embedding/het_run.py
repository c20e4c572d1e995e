"""Workers that share embedding tables on parameter servers under HET's protocol: what they find, fetch and push."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache, Prepared
from sim.embedding.het import Clocking, Push, Read, ServerClocks, WorkerClocks
from sim.embedding.ids import Ids, Table, id_source
from sim.embedding.policies import Ints
from sim.embedding.run import CacheRun, CacheSpec, Counter, filled_cache, static_hit_rate
from sim.embedding.turns import Turn, Workers

HEADER_BYTES: Final = 16
"""Number and clock of a row, before its elements in a message."""

_AT_ONCE: Final = 32
"""Batches of a worker that are looked up in its cache before those of the next worker."""


class HetSpec(Struct, frozen=True, kw_only=True):
    """Workers with a cache each, and how far their copies of rows may differ."""

    workers: Workers
    clocking: Clocking
    cache: CacheSpec


class HetRun(Struct, frozen=True, kw_only=True):
    """Counts per step and worker, arrays [steps, workers]; ``cache``: sums over workers, per step.

    ``unique``: different rows of the batch; ``pulled``: rows that servers sent, ``stale`` those of them that lay in the
    cache with too old a clock; ``pushed``: rows whose changes were pushed, ``evicted`` those of them that gave way.
    ``flushed``: rows that each worker pushed after its last step.
    """

    cache: CacheRun
    unique: Ints
    pulled: Ints
    stale: Ints
    pushed: Ints
    evicted: Ints
    flushed: Ints
    clocks: Ints
    """Updates of each row that servers have applied at the end."""

    def received_bytes(self, row_bytes: int) -> Ints:
        """Return bytes that servers sent: number, clock and elements of each pulled row."""
        return (HEADER_BYTES + row_bytes) * self.pulled

    def sent_bytes(self, row_bytes: int) -> Ints:
        """Return bytes that workers sent: number and clock of each row of the batch, and pushed rows with them."""
        return HEADER_BYTES * self.unique + (HEADER_BYTES + row_bytes) * self.pushed


class HetCounter:
    """Counts the requests of all workers."""

    def __init__(self, source: Ids, num_steps: int, num_workers: int) -> None:
        self._counter = Counter(source, num_steps)
        self._counts = np.zeros((5, num_steps, num_workers), dtype=np.int64)
        self._flushed = np.zeros(num_workers, dtype=np.int64)

    def add(self, turn: Turn, read: Read, is_sent: NDArray[np.bool_], push: Push) -> None:
        """Add a step of a worker."""
        pulled, stale = int(np.count_nonzero(is_sent)), int(np.count_nonzero(is_sent & read.found.is_hit))
        self._counter.add(turn.step, read.found, pulled, len(push.rows))
        counts = len(read.found.rows), pulled, stale, len(push.rows), push.num_evicted
        self._counts[:, turn.step, turn.worker] = counts

    def flush(self, worker: int, push: Push) -> None:
        """Add what a worker pushes after its last step."""
        self._flushed[worker] = len(push.rows)

    def counted(self, static: float, clocks: Ints) -> HetRun:
        """Return all counts."""
        unique, pulled, stale, pushed, evicted = self._counts
        return HetRun(
            cache=self._counter.counted(static),
            unique=unique,
            pulled=pulled,
            stale=stale,
            pushed=pushed,
            evicted=evicted,
            flushed=self._flushed,
            clocks=clocks,
        )


def run_het(
    tables: Sequence[Table],
    spec: HetSpec,
    num_steps: int,
    batch_size: int,
    seed: int,
    turns: Iterable[Turn] | None = None,
    recorded: Ints | None = None,
) -> HetRun:
    """Return what each step of each worker found, fetched and pushed. Raises CacheTooSmallError.

    ``turns``: the order of the requests, such as a recorded one; None: that of ``spec.workers``. ``recorded``: the row
    of each table that each sample reads; None: ids are drawn.
    """
    clocking, num_workers = spec.clocking, spec.workers.num_workers
    source = id_source(tables, seed, recorded, num_workers)
    expected = source.lookups_per_sample()
    server = ServerClocks(source.num_rows)
    caches = [filled_cache(spec.cache, expected, seed) for _ in range(num_workers)]
    workers = [WorkerClocks(cache, clocking) for cache in caches]
    found = [_found(cache, source.batches(num_steps, batch_size, place)) for place, cache in enumerate(caches)]
    counter = HetCounter(source, num_steps, num_workers)
    reads = dict[int, tuple[Read, NDArray[np.bool_]]]()
    for turn in spec.workers.turns(num_steps) if turns is None else turns:
        worker = workers[turn.worker]
        if turn.kind == "read":
            read = worker.look_up(next(found[turn.worker]))
            answer = server.answer(read.found.rows, read.clocks, clocking.read_bound)
            worker.receive(read, answer)
            reads[turn.worker] = read, answer.is_sent
        else:
            read, is_sent = reads.pop(turn.worker)
            push = worker.write(read)
            server.apply(push)
            counter.add(turn, read, is_sent, push)
    for place, worker in enumerate(workers):
        push = worker.flush()
        server.apply(push)
        counter.flush(place, push)
    return counter.counted(static_hit_rate(spec.cache.num_slots, expected), server.clocks)


def _found(cache: BatchCache, batches: Iterator[Ints]) -> Iterator[Prepared]:
    """Yield what each batch of a worker finds in its cache, which does not depend on clocks.

    Several batches are prepared one after the other, while the arrays of one cache are near the processor.
    """
    while found := [cache.prepare(ids) for ids in islice(batches, _AT_ONCE)]:
        yield from found
