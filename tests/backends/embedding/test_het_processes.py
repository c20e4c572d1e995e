"""HET as processes: counts, bytes and clocks of the simulation, and rows that are those of training in one process."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from backends.execution.errors import RankError
from backends.execution.het import HetExecution, HetRequest
from backends.registry import load_torch_backend
from backends.torch.embedding.het_reference import trained_in_one_process
from backends.torch.embedding.model import RowModel
from sim.embedding.het import Clocking
from sim.embedding.het_run import Dense, HetSpec, run_het
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Consistency, Workers
from tests.processes import needs_proc, until, workers


def request(
    consistency: Consistency, bound: int, slack: int = 0, num_steps: int = 12, dense: Dense = "all_reduce"
) -> HetRequest:
    """Return three workers on two small tables; each caches a third of the rows. Dense weights have no equal parts."""
    return HetRequest(
        tables=[
            Table(name="a", num_rows=60, num_lookups=2, zipf=1.0),
            Table(name="b", num_rows=6, num_lookups=1, zipf=0.0),
        ],
        embedding_dim=4,
        spec=HetSpec(
            workers=Workers(consistency=consistency, relative_step_times=(1.0,) * 3, slack=slack),
            clocking=Clocking(read_bound=bound, write_bound=bound, counted="lookup" if bound == 3 else "step"),
            cache=CacheSpec(num_slots=24, policy="lru", warm_up=0.5),
            dense=dense,
        ),
        num_steps=num_steps,
        batch_size=5,
        seed=4,
        check=True,
    )


def check_counts(found: HetExecution, asked: HetRequest) -> None:
    """The simulation of the same requests in the same order has the same rows, bytes and clocks."""
    simulated = run_het(asked.tables, asked.spec, asked.num_steps, asked.batch_size, asked.seed, found.turns)
    assert found.unique.tolist() == simulated.unique.tolist()
    assert found.pulled.tolist() == simulated.pulled.tolist()
    assert found.pushed.tolist() == simulated.pushed.tolist()
    assert found.flushed.tolist() == simulated.flushed.tolist()
    assert found.received_bytes.tolist() == simulated.received_bytes(16).tolist()
    assert found.sent_bytes.tolist() == simulated.sent_bytes(16).tolist()
    assert found.clocks.tolist() == simulated.clocks.tolist()


@pytest.mark.parametrize(
    ("consistency", "bound", "slack", "dense"),
    [
        ("bsp", 0, 0, "all_reduce"),
        ("ssp", 3, 1, "all_reduce"),
        ("asp", 1, 0, "all_reduce"),
        ("ssp", 1, 1, "servers"),
    ],
)
def test_processes_count_as_simulated_with_equal_weights(
    consistency: Consistency, bound: int, slack: int, dense: Dense
) -> None:
    """Rows, bytes and clocks are the simulated ones; weights have the bits of one process (BSP and 0: no caches)."""
    asked = request(consistency, bound, slack, dense=dense)
    found = load_torch_backend().train_with_servers(asked)
    check_counts(found, asked)
    assert (found.differing_weights, found.unequal_dense_weights) == (0, 0)
    assert found.num_weights == 66 * 4 + 8
    assert np.all(found.pulled > 0)
    assert found.clocks.sum() == (3 * 12 * 15 if bound == 3 else found.unique.sum())
    assert (found.flushed.sum() > 0) == (bound > 0)


@pytest.mark.parametrize("dense", ["all_reduce", "servers"])
def test_bound_zero_under_bsp_is_training_on_all_batches_at_once(dense: Dense) -> None:
    """The definition of one process: autograd over the sum of all workers' losses, by SGD on whole tables."""
    asked = request("bsp", 0, num_steps=4, dense=dense)
    model = RowModel.of(asked)
    table = model.initial_rows(torch.device("cpu")).double().requires_grad_()
    weights = model.initial_dense(torch.device("cpu")).double().requires_grad_()
    before = weights.detach().clone()
    batches = zip(*(asked.source().batches(4, 5, worker) for worker in range(3)), strict=True)
    for step, every in enumerate(batches):
        losses = []
        for worker, ids in enumerate(every):
            pairs, single = (table[torch.from_numpy(part)] for part in (ids[:10], ids[10:]))
            labels = torch.from_numpy(np.random.default_rng([4, step, worker]).integers(0, 2, 5)).double()
            losses.append(
                binary_cross_entropy_with_logits(
                    torch.cat((pairs.view(5, 2, 4).sum(dim=1), single), dim=1) @ weights, labels
                )
            )
        of_table, of_weights = torch.autograd.grad(sum(losses), (table, weights))
        with torch.no_grad():
            table -= asked.learning_rate * of_table
            weights -= asked.learning_rate * of_weights
    found = trained_in_one_process(asked, ())
    assert (weights - before).abs().max() > 1e-3
    assert torch.allclose(found.rows.double(), table, atol=1e-6)
    assert torch.allclose(found.dense.double(), weights, atol=1e-6)


@needs_proc
def test_a_worker_that_is_killed_is_named() -> None:
    """A worker that dies while others sum with it ends the training with its rank, and leaves no process behind."""

    def kill_one() -> None:
        until(lambda: len(workers(os.getpid())) == 4, "there are no four processes")
        time.sleep(1.0)
        os.kill(workers(os.getpid())[2], signal.SIGKILL)

    thread, began_s = threading.Thread(target=kill_one, daemon=True), time.monotonic()
    thread.start()
    with pytest.raises(RankError, match="rank 2 was ended by SIGKILL"):
        load_torch_backend().train_with_servers(request("asp", 1, num_steps=1_000_000))
    thread.join()
    assert time.monotonic() - began_s < 60.0
    assert workers(os.getpid()) == []
