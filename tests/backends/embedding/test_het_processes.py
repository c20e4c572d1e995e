"""HET as processes: counts, bytes and clocks of the simulation, and rows that are those of training in one process."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from backends.execution.errors import RankError
from backends.execution.het import HetExecution, HetRequest
from backends.registry import load_torch_backend
from sim.embedding.het import Clocking
from sim.embedding.het_run import HetSpec, run_het
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Consistency, Workers
from tests.processes import needs_proc, until, workers


def request(consistency: Consistency, bound: int, slack: int = 0, num_steps: int = 12, policy="lru") -> HetRequest:
    """Return three workers on two small tables; each caches a third of the rows."""
    return HetRequest(
        tables=[
            Table(name="a", num_rows=60, num_lookups=2, zipf=1.0),
            Table(name="b", num_rows=6, num_lookups=1, zipf=0.0),
        ],
        embedding_dim=4,
        spec=HetSpec(
            workers=Workers(consistency=consistency, relative_step_times=(1.0,) * 3, slack=slack),
            clocking=Clocking(read_bound=bound, write_bound=bound, counted="lookup" if bound == 3 else "step"),
            cache=CacheSpec(num_slots=24, policy=policy, warm_up=0.5),
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


@pytest.mark.parametrize(("consistency", "bound", "slack"), [("bsp", 0, 0), ("ssp", 3, 1), ("asp", 1, 0)])
def test_processes_count_as_simulated_with_equal_rows(consistency: Consistency, bound: int, slack: int) -> None:
    """Rows, bytes and clocks are the simulated ones; rows have the bits of one process (BSP and 0: without caches)."""
    asked = request(consistency, bound, slack)
    found = load_torch_backend().train_with_servers(asked)
    check_counts(found, asked)
    assert found.differing_weights == 0
    assert np.all(found.pulled > 0)
    assert found.clocks.sum() == (3 * 12 * 15 if bound == 3 else found.unique.sum())
    assert (found.flushed.sum() > 0) == (bound > 0)


@needs_proc
def test_a_worker_that_is_killed_is_named() -> None:
    """A worker that dies in the middle ends the training with its rank, and leaves no process behind."""

    def kill_one() -> None:
        until(lambda: len(workers(os.getpid())) == 4, "there are no four processes")
        time.sleep(1.0)
        os.kill(workers(os.getpid())[2], signal.SIGKILL)

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    with pytest.raises(RankError, match="rank 2 was ended by SIGKILL"):
        load_torch_backend().train_with_servers(request("asp", 1, num_steps=1_000_000))
    thread.join()
    assert workers(os.getpid()) == []
