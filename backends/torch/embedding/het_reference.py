"""HET in one process, on whole tables: what the rows must be after the same requests in the same order."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from backends.execution.het import HetRequest
from backends.torch.embedding.model import RowModel
from sim.embedding.het import Read, ServerClocks, WorkerClocks
from sim.embedding.run import filled_cache
from sim.embedding.turns import Turn


def trained_in_one_process(request: HetRequest, turns: Iterable[Turn]) -> Tensor:
    """Return the rows of all tables after a training.

    With BSP and bounds of 0 there are neither caches nor clocks in it: all workers read the same table, and their
    changes are added worker by worker. Else the requests are those of ``turns``.
    """
    clocking, model = request.spec.clocking, RowModel.of(request)
    is_exact = request.spec.workers.consistency == "bsp" and clocking.read_bound == clocking.write_bound == 0
    return _synchronous(request, model) if is_exact else _in_turns(request, model, turns)


def _synchronous(request: HetRequest, model: RowModel) -> Tensor:
    """Return the rows after synchronous training without caches."""
    source, workers = request.source(), range(request.spec.workers.num_workers)
    table, dense = model.initial_rows(torch.device("cpu")), model.initial_dense(torch.device("cpu"))
    batches = zip(*(source.batches(request.num_steps, request.batch_size, one) for one in workers), strict=True)
    for step, every in enumerate(batches):
        found = [model.gradients(table, dense, torch.from_numpy(ids), [step, one]) for one, ids in enumerate(every)]
        for gradients in found:
            table.index_add_(0, gradients.rows, gradients.of_rows * -request.learning_rate)
    return table


def _in_turns(request: HetRequest, model: RowModel, turns: Iterable[Turn]) -> Tensor:
    """Return the rows after requests in this order; every worker has a whole table, of which its clocks use a part."""
    source, cpu = request.source(), torch.device("cpu")
    expected, num_workers = source.lookups_per_sample(), request.spec.workers.num_workers
    table, dense, server = model.initial_rows(cpu), model.initial_dense(cpu), ServerClocks(source.num_rows)
    copies, changes = [table.clone() for _ in range(num_workers)], [torch.zeros_like(table) for _ in range(num_workers)]
    caches = [filled_cache(request.spec.cache, expected, request.seed) for _ in range(num_workers)]
    clocks = [WorkerClocks(cache, request.spec.clocking) for cache in caches]
    batches = [source.batches(request.num_steps, request.batch_size, worker) for worker in range(num_workers)]
    reads = dict[int, tuple[Read, np.ndarray[tuple[int], np.dtype[np.int64]]]]()

    def push(worker: int, rows: Tensor) -> None:
        table.index_add_(0, rows, changes[worker][rows])
        changes[worker][rows] = 0

    for turn in turns:
        one = turn.worker
        if turn.kind == "read":
            ids = next(batches[one])
            read = clocks[one].look_up(caches[one].prepare(ids))
            answer = server.answer(read.found.rows, read.clocks, request.spec.clocking.read_bound)
            clocks[one].receive(read, answer)
            pulled = torch.from_numpy(read.found.rows[answer.is_sent])
            copies[one][pulled] = table[pulled] + changes[one][pulled]
            reads[one] = read, ids
        else:
            read, ids = reads.pop(one)
            found = model.gradients(copies[one], dense, torch.from_numpy(ids), [turn.step, one])
            update = found.of_rows * -request.learning_rate
            copies[one].index_add_(0, found.rows, update)
            changes[one].index_add_(0, found.rows, update)
            sent = clocks[one].write(read)
            server.apply(sent)
            push(one, torch.from_numpy(sent.rows))
    for one in range(num_workers):
        push(one, torch.from_numpy(clocks[one].flush().rows))
    return table
