"""HET with torch: a process that serves the tables, and workers that train rows in caches of their own.

Rank 0 is the server, the others are workers. The clocks are the simulation's objects; here rows and their changes are
tensors, and go from process to process. The dense weights stay as they are drawn: only rows are trained.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor

from backends.execution.het import HetExecution, HetRequest
from backends.torch.embedding.het_reference import trained_in_one_process
from backends.torch.embedding.model import RowModel, differing_bits
from backends.torch.launching.local import LocalRanks
from backends.torch.launching.worker import Worker
from sim.embedding.het import Answer, Push, Read, ServerClocks, WorkerClocks
from sim.embedding.ids import Ids
from sim.embedding.policies import Ints
from sim.embedding.run import filled_cache
from sim.embedding.turns import Turn

_SERVER: Final = 0
_READ, _WRITE, _FLUSH = 0, 1, 2
_HEADER_TAG: Final = 1
"""Headers are told apart from what follows them: the server takes them from whoever comes first."""
_CPU = torch.device("cpu")


class _Served(Struct, frozen=True):
    """What the server reports: the order of requests, its clocks, and weights that differ from the reference."""

    turns: tuple[Turn, ...]
    clocks: Ints
    differing: int | None


class _Worked(Struct, frozen=True):
    """What a worker reports: rows asked for, received and pushed, and bytes received and sent, per step."""

    counts: Ints
    flushed: int
    step_s: float


def train_with_servers(request: HetRequest) -> HetExecution:
    """Return what processes of this machine counted. Raises RankError if one of them fails or is killed."""
    with LocalRanks(request.spec.workers.num_workers + 1, "cpu", request.timeout_s) as ranks:
        served, *worked = ranks.call(_run, request)
    assert isinstance(served, _Served)
    reports = [one for one in worked if isinstance(one, _Worked)]
    unique, pulled, pushed, received_bytes, sent_bytes = np.stack([one.counts for one in reports], axis=-1)
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
        num_weights=len(served.clocks) * request.embedding_dim,
        differing_weights=served.differing,
    )


def _run(worker: Worker, request: HetRequest) -> _Served | _Worked:
    """Serve the tables on the first rank, and train on the others."""
    del worker
    torch.set_num_threads(1)
    rank = dist.get_rank()
    return _Server(request).serve() if rank == _SERVER else _train(request, rank - 1)


class _Server:
    """Holds all rows and their clocks, and answers workers in the order that their agreement allows."""

    def __init__(self, request: HetRequest) -> None:
        self._request, self._workers = request, request.spec.workers
        self._table = RowModel.of(request).initial_rows(_CPU)
        self._clocks = ServerClocks(len(self._table))
        self._written = [0] * self._workers.num_workers
        self._turns = list[Turn]()

    def serve(self) -> _Served:
        """Answer all requests of all workers; return their order."""
        waiting, rest = dict[int, Tensor](), dict[int, tuple[Tensor, Tensor]]()
        for worker, kind, num_rows in self._requests():
            numbers = _received((2, num_rows), worker + 1)
            if kind == _READ:
                waiting[worker] = numbers
            else:
                changes = _received((num_rows, self._table.shape[1]), worker + 1, torch.float32)
                if kind == _FLUSH:
                    rest[worker] = numbers, changes
                    continue
                self._apply(numbers, changes)
                self._turns.append(Turn(worker, self._written[worker], "write"))
                self._written[worker] += 1
            for one in [one for one in waiting if self._may_read(one)]:
                self._answer(one, waiting.pop(one))
        for worker in range(self._workers.num_workers):
            self._apply(*rest[worker])
        return _Served(tuple(self._turns), self._clocks.clocks, self._differing())

    def _requests(self) -> Iterator[tuple[int, int, int]]:
        """Return who asks, for what, and the number of rows: under BSP in a fixed order, else as requests come.

        A worker's last request has the changes that it still holds. They are added when all have come.
        """
        num_steps, num_workers = self._request.num_steps, self._workers.num_workers
        if self._workers.consistency == "bsp":
            yield from (_header(turn.worker) for turn in self._workers.turns(num_steps))
            yield from (_header(worker) for worker in range(num_workers))
        else:
            yield from (_header(None) for _ in range((2 * num_steps + 1) * num_workers))

    def _may_read(self, worker: int) -> bool:
        """Return whether a worker is not too far ahead of the slowest; under BSP it never is."""
        ahead = self._written[worker] - min(self._written)
        return self._workers.consistency != "ssp" or ahead <= self._workers.slack

    def _answer(self, worker: int, asked: Tensor) -> None:
        rows, clocks = asked.numpy()
        answer = self._clocks.answer(rows, clocks, self._request.spec.clocking.read_bound)
        sent = rows[answer.is_sent]
        dist.send(torch.tensor([len(sent)]), worker + 1)
        _send(torch.from_numpy(np.stack((sent, answer.clocks))), worker + 1)
        _send(self._table[torch.from_numpy(sent)], worker + 1)
        self._turns.append(Turn(worker, self._written[worker], "read"))

    def _apply(self, numbers: Tensor, changes: Tensor) -> None:
        rows, updates = numbers.numpy()
        self._table.index_add_(0, numbers[0], changes)
        self._clocks.apply(Push(rows=rows, updates=updates, slots=rows, num_evicted=0))

    def _differing(self) -> int | None:
        if not self._request.check:
            return None
        return differing_bits(self._table, trained_in_one_process(self._request, self._turns))


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


def _train(request: HetRequest, worker: int) -> _Worked:
    """Train on a worker's batches; return its counts, a column per step."""
    model, source = RowModel.of(request), request.source()
    copies, dense = _Copies(request, source), model.initial_dense(_CPU)
    counts, began_s = list[Sequence[int]](), perf_counter()
    for step, ids in enumerate(source.batches(request.num_steps, request.batch_size, worker)):
        read = copies.clocks.look_up(copies.cache.prepare(ids))
        leaving = copies.make_room(read)
        received_bytes, asked_bytes, num_pulled = _pull(copies, read, request.embedding_dim)
        places = torch.from_numpy(read.found.slots[np.searchsorted(read.found.rows, ids)])
        found = model.gradients(copies.rows, dense, places, [step, worker])
        copies.change(found.rows, found.of_rows * -request.learning_rate)
        push = copies.clocks.write(read)
        staying = push.slots[: len(push.slots) - push.num_evicted]
        pushed_bytes = _push(_WRITE, push, torch.cat((copies.take(staying), leaving)))
        counts.append((len(read.clocks), num_pulled, len(push.rows), received_bytes, asked_bytes + pushed_bytes))
    step_s = (perf_counter() - began_s) / request.num_steps
    rest = copies.clocks.flush()
    _push(_FLUSH, rest, copies.take(rest.slots))
    return _Worked(np.array(counts, dtype=np.int64).T, len(rest.rows), step_s)


def _pull(copies: _Copies, read: Read, embedding_dim: int) -> tuple[int, int, int]:
    """Ask for a batch's rows and take those that come; return bytes received, bytes sent and rows received."""
    asked = torch.from_numpy(np.stack((read.found.rows, read.clocks)))
    dist.send(torch.tensor([_READ, len(read.clocks)]), _SERVER, tag=_HEADER_TAG)
    _send(asked, _SERVER)
    (num_rows,) = _received((1,), _SERVER).tolist()
    numbers = _received((2, num_rows), _SERVER)
    values = _received((num_rows, embedding_dim), _SERVER, torch.float32)
    rows, clocks = numbers.numpy()
    is_sent = np.isin(read.found.rows, rows, assume_unique=True)
    copies.clocks.receive(read, Answer(is_sent=is_sent, clocks=clocks))
    copies.receive(read.found.slots[is_sent], values)
    return numbers.nbytes + values.nbytes, asked.nbytes, num_rows


def _push(kind: int, push: Push, changes: Tensor) -> int:
    """Send changes to the server; return the bytes."""
    numbers = torch.from_numpy(np.stack((push.rows, push.updates)))
    dist.send(torch.tensor([kind, len(push.rows)]), _SERVER, tag=_HEADER_TAG)
    _send(numbers, _SERVER)
    _send(changes, _SERVER)
    return numbers.nbytes + changes.nbytes


def _header(worker: int | None) -> tuple[int, int, int]:
    """Return who asks, for what, and the number of rows; ``worker``: None takes whoever comes first."""
    header = torch.zeros(2, dtype=torch.int64)
    rank = dist.recv(header, None if worker is None else worker + 1, tag=_HEADER_TAG)
    kind, num_rows = header.tolist()
    return rank - 1, kind, num_rows


def _received(shape: tuple[int, ...], rank: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return a tensor that another rank sends; one without elements is not sent."""
    tensor = torch.zeros(shape, dtype=dtype)
    if tensor.numel():
        dist.recv(tensor, rank)
    return tensor


def _send(tensor: Tensor, rank: int) -> None:
    if tensor.numel():
        dist.send(tensor.contiguous(), rank)
