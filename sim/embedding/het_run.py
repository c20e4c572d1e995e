"""Workers that share embedding tables on parameter servers under HET's protocol: what they find, fetch and push."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.cache import BatchCache, Prepared
from sim.embedding.het import Clocking, Push, Read, ServerClocks, WorkerClocks
from sim.embedding.ids import Ids, Table, id_source
from sim.embedding.policies import Ints
from sim.embedding.run import CacheRun, CacheSpec, Counter, filled_cache, static_hit_rate
from sim.embedding.turns import Turn, Workers

Dense = Literal["all_reduce", "servers"]
"""``all_reduce``: each worker has the dense layers, and all sum their gradients (HET's hybrid); ``servers``: the
servers have them, and workers push gradients and pull layers beside their rows."""
ON_SERVERS: Final[Dense] = "servers"

HEADER_BYTES: Final = 16
"""Number and clock of a row, before its elements in a message."""

_AT_ONCE: Final = 32
"""Batches of a worker that are looked up in its cache before those of the next worker."""


class HetSpec(Struct, frozen=True, kw_only=True):
    """Workers with a cache each, how far their copies of rows may differ, and where the dense layers lie."""

    workers: Workers
    clocking: Clocking
    cache: CacheSpec
    dense: Dense = "all_reduce"


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


class HetRequests:
    """All workers and the servers: the requests of every step in an order that the caller chooses, and their counts.

    Of a worker's step ``ask``, ``answer``, ``write`` and ``apply`` follow each other; steps of a worker too.
    """

    def __init__(self, source: Ids, spec: HetSpec, num_steps: int, batch_size: int, seed: int) -> None:
        expected, num_workers = source.lookups_per_sample(), spec.workers.num_workers
        self._read_bound, self._static = spec.clocking.read_bound, static_hit_rate(spec.cache.num_slots, expected)
        self._server = ServerClocks(source.num_rows)
        caches = [filled_cache(spec.cache, expected, seed) for _ in range(num_workers)]
        self._workers = [WorkerClocks(cache, spec.clocking) for cache in caches]
        self._found = [_found(cache, source.batches(num_steps, batch_size, w)) for w, cache in enumerate(caches)]
        self._counter = HetCounter(source, num_steps, num_workers)
        self._reads = dict[int, tuple[Read, NDArray[np.bool_]]]()
        self._pushes = dict[int, Push]()

    def ask(self, worker: int) -> Ints:
        """Return the different rows of a worker's next batch, which it asks the servers for."""
        read = self._workers[worker].look_up(next(self._found[worker]))
        self._reads[worker] = read, np.zeros(0, dtype=np.bool_)
        return read.found.rows

    def answer(self, worker: int) -> Ints:
        """Return the rows that the servers, as they are now, send to a worker that has asked."""
        read, _ = self._reads[worker]
        answer = self._server.answer(read.found.rows, read.clocks, self._read_bound)
        self._workers[worker].receive(read, answer)
        self._reads[worker] = read, answer.is_sent
        sent: Ints = read.found.rows[answer.is_sent]
        return sent

    def write(self, worker: int, step: int) -> Ints:
        """Return the rows whose changes a worker pushes after this step."""
        read, is_sent = self._reads.pop(worker)
        push = self._pushes[worker] = self._workers[worker].write(read)
        self._counter.add(Turn(worker, step, "write"), read, is_sent, push)
        return push.rows

    def apply(self, worker: int) -> None:
        """Let the servers apply what a worker has pushed."""
        self._server.apply(self._pushes.pop(worker))

    def ended(self) -> HetRun:
        """Return all counts; workers push what they still have."""
        for place, worker in enumerate(self._workers):
            push = worker.flush()
            self._server.apply(push)
            self._counter.flush(place, push)
        return self._counter.counted(self._static, self._server.clocks)


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
    source = id_source(tables, seed, recorded, spec.workers.num_workers)
    requests = HetRequests(source, spec, num_steps, batch_size, seed)
    for turn in spec.workers.turns(num_steps) if turns is None else turns:
        if turn.kind == "read":
            requests.ask(turn.worker)
            requests.answer(turn.worker)
        else:
            requests.write(turn.worker, turn.step)
            requests.apply(turn.worker)
    return requests.ended()


def _found(cache: BatchCache, batches: Iterator[Ints]) -> Iterator[Prepared]:
    """Yield what each batch of a worker finds in its cache, which does not depend on clocks.

    Several batches are prepared one after the other, while the arrays of one cache are near the processor.
    """
    while found := [cache.prepare(ids) for ids in islice(batches, _AT_ONCE)]:
        yield from found
