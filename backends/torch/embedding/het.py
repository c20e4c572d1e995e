"""HET with torch: a process that serves the tables, and workers that train rows in caches of their own.

Rank 0 is the server, the others are workers. The clocks are the simulation's objects; here rows, their changes, dense
weights and their gradients are tensors, and go from process to process.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from backends.execution.het import HetExecution, HetRequest
from backends.torch.embedding.dense_layers import DenseLayers, ServedLayers, SummedLayers, change
from backends.torch.embedding.het_reference import trained_in_one_process
from backends.torch.embedding.messages import (
    FLUSH,
    READ,
    SERVER,
    WRITE,
    rank_of,
    received,
    received_header,
    send,
    send_header,
)
from backends.torch.embedding.model import RowModel, differing_bits
from backends.torch.launching.local import LocalRanks
from backends.torch.launching.worker import Worker
from sim.embedding.het import Answer, Push, Read, ServerClocks, WorkerClocks
from sim.embedding.het_run import ON_SERVERS
from sim.embedding.ids import Ids
from sim.embedding.policies import Ints
from sim.embedding.run import filled_cache
from sim.embedding.turns import Turn

Floats = NDArray[np.float32]
_CPU: Final = torch.device("cpu")


class _Served(Struct, frozen=True, kw_only=True):
    """What the server reports: the order of requests, its clocks, and its dense weights, if it has them.

    ``differing_rows``, ``expected_dense``: elements of rows that are not those of the reference, and its dense weights;
    None without a check.
    """

    turns: tuple[Turn, ...]
    clocks: Ints
    dense: Floats | None
    differing_rows: int | None = None
    expected_dense: Floats | None = None


class _Worked(Struct, frozen=True):
    """What a worker reports: rows asked for, received and pushed, and bytes received and sent, per step.

    ``dense``: its dense weights at the end; None where the server has them.
    """

    counts: Ints
    flushed: int
    step_s: float
    dense: Floats | None


def train_with_servers(request: HetRequest) -> HetExecution:
    """Return what processes of this machine counted. Raises RankError if one of them fails or is killed."""
    with LocalRanks(request.spec.workers.num_workers + 1, "cpu", request.timeout_s) as ranks:
        served, *worked = ranks.call(_run, request)
    assert isinstance(served, _Served)
    reports = [one for one in worked if isinstance(one, _Worked)]
    unique, pulled, pushed, received_bytes, sent_bytes = np.stack([one.counts for one in reports], axis=-1)
    dense = [weights for weights in (served.dense, *(one.dense for one in reports)) if weights is not None]
    differing = served.differing_rows
    if differing is not None and served.expected_dense is not None:
        differing += _num_unequal([served.expected_dense, *dense])
    return HetExecution(
        turns=served.turns,
        clocks=served.clocks,
        unique=unique,
        pulled=pulled,
        pushed=pushed,
        received_bytes=received_bytes,
        sent_bytes=sent_bytes,
        flushed=np.array([one.flushed for one in reports]),
        step_s=float(np.mean([one.step_s for one in reports])),
        num_weights=len(served.clocks) * request.embedding_dim + len(dense[0]),
        unequal_dense_weights=_num_unequal(dense),
        differing_weights=differing,
    )


def _num_unequal(weights: Sequence[Floats]) -> int:
    """Return how many elements have not the same bits in all vectors."""
    bits = np.stack(weights).view(np.int32)
    return int((bits != bits[0]).any(axis=0).sum())


def _run(worker: Worker, request: HetRequest) -> _Served | _Worked:
    """Serve the tables on the first rank, and train on the others."""
    del worker
    torch.set_num_threads(1)
    workers = dist.new_group([rank_of(one) for one in range(request.spec.workers.num_workers)])
    rank = dist.get_rank()
    return _Server(request).serve() if rank == SERVER else _train(request, rank - 1, workers)


def _layers(request: HetRequest, workers: dist.ProcessGroup) -> DenseLayers:
    """Return a worker's dense weights before the first batch."""
    weights = RowModel.of(request).initial_dense(_CPU)
    if request.spec.dense == ON_SERVERS:
        return ServedLayers(weights)
    return SummedLayers(weights, request.learning_rate, workers)


class _Server:
    """Holds all rows and their clocks, and answers workers in the order that their agreement allows."""

    def __init__(self, request: HetRequest) -> None:
        self._request, self._workers = request, request.spec.workers
        self._table = RowModel.of(request).initial_rows(_CPU)
        is_dense_here = request.spec.dense == ON_SERVERS
        self._dense = RowModel.of(request).initial_dense(_CPU) if is_dense_here else None
        self._clocks = ServerClocks(len(self._table))
        self._written = [0] * self._workers.num_workers
        self._turns = list[Turn]()

    def serve(self) -> _Served:
        """Answer all requests of all workers; return their order."""
        waiting, rest = dict[int, Tensor](), dict[int, tuple[Tensor, Tensor]]()
        for worker, kind, num_rows in self._requests():
            numbers = received((2, num_rows), rank_of(worker))
            if kind == READ:
                waiting[worker] = numbers
            else:
                changes = received((num_rows, self._table.shape[1]), rank_of(worker), torch.float32)
                if kind == FLUSH:
                    rest[worker] = numbers, changes
                    continue
                self._apply(numbers, changes)
                self._change_dense(worker)
                self._turns.append(Turn(worker, self._written[worker], "write"))
                self._written[worker] += 1
            for one in [one for one in waiting if self._may_read(one)]:
                self._answer(one, waiting.pop(one))
        for worker in range(self._workers.num_workers):
            self._apply(*rest[worker])
        return self._served()

    def _requests(self) -> Iterator[tuple[int, int, int]]:
        """Return who asks, for what, and the number of rows: under BSP in a fixed order, else as requests come.

        A worker's last request has the changes that it still holds. They are added when all have come.
        """
        num_steps, num_workers = self._request.num_steps, self._workers.num_workers
        if self._workers.consistency == "bsp":
            yield from (received_header(turn.worker) for turn in self._workers.turns(num_steps))
            yield from (received_header(worker) for worker in range(num_workers))
        else:
            yield from (received_header(None) for _ in range((2 * num_steps + 1) * num_workers))

    def _may_read(self, worker: int) -> bool:
        """Return whether a worker is not too far ahead of the slowest; under BSP it never is."""
        ahead = self._written[worker] - min(self._written)
        return self._workers.consistency != "ssp" or ahead <= self._workers.slack

    def _answer(self, worker: int, asked: Tensor) -> None:
        rows, clocks = asked.numpy()
        answer = self._clocks.answer(rows, clocks, self._request.spec.clocking.read_bound)
        sent = rows[answer.is_sent]
        rank = rank_of(worker)
        send(torch.tensor([len(sent)]), rank)
        send(torch.from_numpy(np.stack((sent, answer.clocks))), rank)
        send(self._table[torch.from_numpy(sent)], rank)
        if self._dense is not None:
            send(self._dense, rank)
        self._turns.append(Turn(worker, self._written[worker], "read"))

    def _apply(self, numbers: Tensor, changes: Tensor) -> None:
        rows, updates = numbers.numpy()
        self._table.index_add_(0, numbers[0], changes)
        self._clocks.apply(Push(rows=rows, updates=updates, slots=rows, num_evicted=0))

    def _change_dense(self, worker: int) -> None:
        """Take a worker's gradient of the dense weights, if they lie here."""
        if self._dense is not None:
            gradient = received(tuple(self._dense.shape), rank_of(worker), self._dense.dtype)
            change(self._dense, gradient, self._request.learning_rate)

    def _served(self) -> _Served:
        dense = None if self._dense is None else self._dense.numpy()
        found = _Served(turns=tuple(self._turns), clocks=self._clocks.clocks, dense=dense)
        if not self._request.check:
            return found
        expected = trained_in_one_process(self._request, self._turns)
        differing = differing_bits(self._table, expected.rows)
        return replace(found, differing_rows=differing, expected_dense=expected.dense.numpy())


class _Copies:
    """A worker's rows in the slots of its cache, and its changes of them that the server does not have yet."""

    def __init__(self, request: HetRequest, source: Ids) -> None:
        self.cache = cache = filled_cache(request.spec.cache, source.lookups_per_sample(), request.seed)
        self.clocks = WorkerClocks(cache, request.spec.clocking)
        self.rows = torch.zeros(len(cache.row_of_slot), request.embedding_dim)
        self._changes = torch.zeros_like(self.rows)
        filled = np.flatnonzero(cache.row_of_slot >= 0)
        if len(filled):
            self.rows[filled] = RowModel.of(request).initial_rows(_CPU)[torch.from_numpy(cache.row_of_slot[filled])]

    def make_room(self, read: Read) -> Tensor:
        """Return the changes of rows that gave way, and clear the slots of new rows."""
        leaving = self._changes[torch.from_numpy(read.evicted_slots)]
        self._changes[torch.from_numpy(read.found.slots_in)] = 0
        return leaving

    def receive(self, slots: Ints, values: Tensor) -> None:
        """Put a server's rows into slots, with the changes that the server does not have yet."""
        places = torch.from_numpy(slots)
        self.rows[places] = values + self._changes[places]

    def change(self, slots: Tensor, changes: Tensor) -> None:
        """Add the changes of a batch."""
        self.rows.index_add_(0, slots, changes)
        self._changes.index_add_(0, slots, changes)

    def take(self, slots: Ints) -> Tensor:
        """Return the changes that are pushed from slots, which have none from now on."""
        places = torch.from_numpy(slots)
        taken = self._changes[places]
        self._changes[places] = 0
        return taken


def _train(request: HetRequest, worker: int, workers: dist.ProcessGroup) -> _Worked:
    """Train on a worker's batches; return its counts, a column per step."""
    model, source = RowModel.of(request), request.source()
    copies, layers = _Copies(request, source), _layers(request, workers)
    counts, began_s = list[Sequence[int]](), perf_counter()
    for step, ids in enumerate(source.batches(request.num_steps, request.batch_size, worker)):
        read = copies.clocks.look_up(copies.cache.prepare(ids))
        leaving = copies.make_room(read)
        received_bytes, asked_bytes, num_pulled = _pull(copies, read, request.embedding_dim)
        layers.pull()
        places = torch.from_numpy(read.found.slots[np.searchsorted(read.found.rows, ids)])
        found = model.gradients(copies.rows, layers.weights, places, [step, worker])
        layers.begin(found.of_dense)
        copies.change(found.rows, found.of_rows * -request.learning_rate)
        push = copies.clocks.write(read)
        staying = push.slots[: len(push.slots) - push.num_evicted]
        pushed_bytes = _push(WRITE, push, torch.cat((copies.take(staying), leaving)))
        layers.end()
        counts.append((len(read.clocks), num_pulled, len(push.rows), received_bytes, asked_bytes + pushed_bytes))
    step_s = (perf_counter() - began_s) / request.num_steps
    rest = copies.clocks.flush()
    _push(FLUSH, rest, copies.take(rest.slots))
    dense = None if request.spec.dense == ON_SERVERS else layers.weights.numpy()
    return _Worked(np.array(counts, dtype=np.int64).T, len(rest.rows), step_s, dense)


def _pull(copies: _Copies, read: Read, embedding_dim: int) -> tuple[int, int, int]:
    """Ask for a batch's rows and take those that come; return bytes received, bytes sent and rows received."""
    asked = torch.from_numpy(np.stack((read.found.rows, read.clocks)))
    send_header(READ, len(read.clocks))
    send(asked, SERVER)
    (num_rows,) = received((1,), SERVER).tolist()
    numbers = received((2, num_rows), SERVER)
    values = received((num_rows, embedding_dim), SERVER, torch.float32)
    rows, clocks = numbers.numpy()
    is_sent = np.isin(read.found.rows, rows, assume_unique=True)
    copies.clocks.receive(read, Answer(is_sent=is_sent, clocks=clocks))
    copies.receive(read.found.slots[is_sent], values)
    return numbers.nbytes + values.nbytes, asked.nbytes, num_rows


def _push(kind: int, push: Push, changes: Tensor) -> int:
    """Send changes to the server; return the bytes."""
    numbers = torch.from_numpy(np.stack((push.rows, push.updates)))
    send_header(kind, len(push.rows))
    send(numbers, SERVER)
    send(changes, SERVER)
    return numbers.nbytes + changes.nbytes
