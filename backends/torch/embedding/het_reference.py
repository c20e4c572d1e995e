"""HET in one process, on whole tables: what all weights must be after the same requests in the same order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import torch
from msgspec import Struct
from torch import Tensor

from backends.execution.het import HetRequest
from backends.torch.embedding.dense_layers import change, sum_of
from backends.torch.embedding.model import Gradients, RowModel
from sim.embedding.het import Read, ServerClocks, WorkerClocks
from sim.embedding.het_run import ON_SERVERS
from sim.embedding.run import filled_cache
from sim.embedding.turns import Turn

_CPU: Final = torch.device("cpu")


class Trained(Struct, frozen=True):
    """Weights after a training: rows of all tables, and the dense weights."""

    rows: Tensor
    dense: Tensor


def trained_in_one_process(request: HetRequest, turns: Iterable[Turn]) -> Trained:
    """Return the weights after a training.

    With BSP and bounds of 0 there are neither caches nor clocks in it: all workers read the same table, and their
    changes are added worker by worker. Else the requests are those of ``turns``.
    """
    clocking, model = request.spec.clocking, RowModel.of(request)
    is_exact = request.spec.workers.consistency == "bsp" and clocking.read_bound == clocking.write_bound == 0
    return _synchronous(request, model) if is_exact else _in_turns(request, model, turns)


@dataclass(slots=True)
class _Layers:
    """The dense weights that the workers of a step compute with.

    On servers a gradient changes them when it is written. Else they change once all workers have a gradient of the
    step, by the sum of these; a worker gives its own as soon as it has its rows.
    """

    request: HetRequest
    weights: Tensor
    _given: dict[int, Tensor] = field(default_factory=dict)

    @property
    def given_at(self) -> str:
        """Return the kind of the turn in which a worker gives its gradient."""
        return "write" if self.request.spec.dense == ON_SERVERS else "read"

    def give(self, worker: int, gradient: Tensor) -> None:
        """Take a worker's gradient."""
        if self.request.spec.dense == ON_SERVERS:
            change(self.weights, gradient, self.request.learning_rate)
            return
        assert worker not in self._given, "a worker has its rows of the next step before all have those of this one"
        self._given[worker] = gradient
        if len(self._given) == self.request.spec.workers.num_workers:
            change(self.weights, sum_of([self._given[one] for one in sorted(self._given)]), self.request.learning_rate)
            self._given.clear()


def _synchronous(request: HetRequest, model: RowModel) -> Trained:
    """Return the weights after synchronous training without caches."""
    source, workers = request.source(), range(request.spec.workers.num_workers)
    table, layers = model.initial_rows(_CPU), _Layers(request, model.initial_dense(_CPU))
    batches = zip(*(source.batches(request.num_steps, request.batch_size, one) for one in workers), strict=True)
    for step, every in enumerate(batches):
        found = [
            model.gradients(table, layers.weights, torch.from_numpy(ids), [step, one]) for one, ids in enumerate(every)
        ]
        for one, gradients in enumerate(found):
            table.index_add_(0, gradients.rows, gradients.of_rows * -request.learning_rate)
            layers.give(one, gradients.of_dense)
    return Trained(table, layers.weights)


def _in_turns(request: HetRequest, model: RowModel, turns: Iterable[Turn]) -> Trained:
    """Return the weights after requests in this order; of its own whole table each worker's clocks use a part."""
    source, bound = request.source(), request.spec.clocking.read_bound
    expected, num_workers = source.lookups_per_sample(), request.spec.workers.num_workers
    table, layers = model.initial_rows(_CPU), _Layers(request, model.initial_dense(_CPU))
    server = ServerClocks(source.num_rows)
    copies, changes = [table.clone() for _ in range(num_workers)], [torch.zeros_like(table) for _ in range(num_workers)]
    caches = [filled_cache(request.spec.cache, expected, request.seed) for _ in range(num_workers)]
    clocks = [WorkerClocks(cache, request.spec.clocking) for cache in caches]
    batches = [source.batches(request.num_steps, request.batch_size, worker) for worker in range(num_workers)]
    reads = dict[int, tuple[Read, Gradients]]()

    def push(worker: int, rows: Tensor) -> None:
        table.index_add_(0, rows, changes[worker][rows])
        changes[worker][rows] = 0

    for turn in turns:
        one = turn.worker
        if turn.kind == "read":
            ids = next(batches[one])
            read = clocks[one].look_up(caches[one].prepare(ids))
            answer = server.answer(read.found.rows, read.clocks, bound)
            clocks[one].receive(read, answer)
            pulled = torch.from_numpy(read.found.rows[answer.is_sent])
            copies[one][pulled] = table[pulled] + changes[one][pulled]
            found = model.gradients(copies[one], layers.weights, torch.from_numpy(ids), [turn.step, one])
            reads[one] = read, found
        else:
            read, found = reads.pop(one)
            update = found.of_rows * -request.learning_rate
            copies[one].index_add_(0, found.rows, update)
            changes[one].index_add_(0, found.rows, update)
            sent = clocks[one].write(read)
            server.apply(sent)
            push(one, torch.from_numpy(sent.rows))
        if turn.kind == layers.given_at:
            layers.give(one, found.of_dense)
    for one in range(num_workers):
        push(one, torch.from_numpy(clocks[one].flush().rows))
    return Trained(table, layers.weights)
