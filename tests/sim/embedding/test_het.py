"""HET's clocks: bounds that hold, no update lost, closed forms of hot rows, and figures by other code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.embedding.cache import BatchCache
from sim.embedding.het import Clocking, ServerClocks, WorkerClocks
from sim.embedding.het_run import HetSpec, run_het
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Turn, Workers
from tests.examples import examples

NUM_ROWS = 9


def spec(bound: int, num_workers: int, num_slots: int, consistency="asp") -> HetSpec:
    """Return workers of equal speed with one bound for reads and writes."""
    return HetSpec(
        workers=Workers(consistency=consistency, relative_step_times=(1.0,) * num_workers),
        clocking=Clocking(read_bound=bound, write_bound=bound),
        cache=CacheSpec(num_slots=num_slots, policy="lru", warm_up=0.0),
    )


@settings(max_examples=examples(16), deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=4), min_size=1, max_size=12),
    num_workers=st.integers(1, 3),
    bounds=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    counted=st.sampled_from(["step", "lookup"]),
    policy=st.sampled_from(["lru", "lfu", "fifo"]),
)
def test_bounds_hold_and_no_update_is_lost(batches, num_workers, bounds, counted, policy) -> None:
    """After a read no copy lacks more than the bound; after a write no worker keeps more; servers apply each update."""
    clocking = Clocking(read_bound=bounds[0], write_bound=bounds[1], counted=counted)
    server = ServerClocks(NUM_ROWS)
    caches = [BatchCache(4, policy, np.ones(NUM_ROWS), 0) for _ in range(num_workers)]
    workers = [WorkerClocks(cache, clocking) for cache in caches]
    made = np.zeros(NUM_ROWS, dtype=np.int64)
    for place, batch in enumerate(batches):
        worker = workers[place % num_workers]
        read = worker.look_up(caches[place % num_workers].prepare(np.array(batch)))
        worker.receive(read, server.answer(read.found.rows, read.clocks, clocking.read_bound))
        lacking = server.clocks[read.found.rows] - worker._clocks[read.found.slots]
        assert (lacking >= 0).all()
        assert (lacking <= clocking.read_bound).all()
        server.apply(worker.write(read))
        np.add.at(made, batch if counted == "lookup" else sorted(set(batch)), 1)
        assert (worker._updates <= clocking.write_bound).all()
    for worker in workers:
        server.apply(worker.flush())
    assert server.clocks.tolist() == made.tolist()


def test_bound_of_zero_is_bsp() -> None:
    """With a barrier and a bound of 0 every read has every earlier update, as without a cache."""
    table = Table(name="t", num_rows=40, num_lookups=3, zipf=1.0)
    spec_of = spec(0, 3, 20, "bsp")
    server, seen = ServerClocks(40), list[bool]()
    caches = [BatchCache(20, "lru", np.ones(40), 0) for _ in range(3)]
    workers = [WorkerClocks(cache, spec_of.clocking) for cache in caches]
    made, reads = np.zeros(40, dtype=np.int64), {}
    rng = np.random.default_rng(0)
    for turn in spec_of.workers.turns(20):
        worker = workers[turn.worker]
        if turn.kind == "read":
            read = worker.look_up(caches[turn.worker].prepare(rng.integers(0, 40, 6)))
            worker.receive(read, server.answer(read.found.rows, read.clocks, 0))
            seen.append((worker._clocks[read.found.slots] == made[read.found.rows]).all())
            reads[turn.worker] = read
        else:
            server.apply(worker.write(reads[turn.worker]))
            made[reads[turn.worker].found.rows] += 1
    assert all(seen)
    run = run_het([table], spec_of, 20, 2, seed=0)
    assert (run.pushed == run.unique).all()


@pytest.mark.parametrize(("bound", "num_workers"), [(4, 1), (9, 2), (9, 5)])
def test_hot_rows_are_pushed_and_pulled_as_closed_forms_say(bound: int, num_workers: int) -> None:
    """Rows that every worker reads in every step: pushed once in s + 1 steps, pulled in at most (W - 1) / (s + 1)."""
    table = Table(name="t", num_rows=3, num_lookups=40, zipf=0.0)
    steps = 30 * (bound + 1)
    run = run_het([table], spec(bound, num_workers, 3), steps, 4, seed=0)
    assert (run.unique == 3).all()
    last = slice(steps // 2, None)
    assert run.pushed[last].sum() / run.unique[last].sum() == pytest.approx(1 / (bound + 1))
    assert run.pulled[last].sum() / run.unique[last].sum() <= (num_workers - 1) / (bound + 1)
    assert (run.pulled[last].sum() > 0) == (num_workers > 1)


def test_a_hundred_thousand_rows_are_as_stated() -> None:
    """Eight workers that take turns, a tenth of the rows cached: within 0.01 of a simulation by other code."""
    table, expected = (
        Table(name="t", num_rows=100_000, num_lookups=26, zipf=1.05),
        (1504.8, 0.4492, 0.6114, 0.1622, 0.4808),
    )
    run = run_het([table], spec(10, 8, 10_000), 90, 128, seed=1)
    last = slice(50, None)
    unique = run.unique[last].sum()
    missed, stale = (run.pulled - run.stale)[last].sum() / unique, run.stale[last].sum() / unique
    found = (missed, run.pulled[last].sum() / unique, stale, run.pushed[last].sum() / unique)
    assert run.unique[last].mean() == pytest.approx(expected[0], rel=0.005)
    assert found == pytest.approx(expected[1:], abs=0.01)


def test_equal_workers_take_turns_and_slack_of_zero_is_a_barrier() -> None:
    """ASP of equal workers: one after the other, each writing a step and reading the next; SSP without slack: BSP."""
    asp = list(Workers(consistency="asp", relative_step_times=(1.0, 1.0)).turns(2))
    assert [(turn.worker, turn.step, turn.kind) for turn in asp] == [
        *((0, 0, "read"), (1, 0, "read"), (0, 0, "write"), (0, 1, "read")),
        *((1, 0, "write"), (1, 1, "read"), (0, 1, "write"), (1, 1, "write")),
    ]
    ssp = Workers(consistency="ssp", relative_step_times=(1.0,) * 4)
    assert list(ssp.turns(5)) == list(Workers(consistency="bsp", relative_step_times=(1.0,) * 4).turns(5))


@given(
    durations=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    slack=st.integers(0, 3),
    consistency=st.sampled_from(["bsp", "ssp", "asp"]),
)
def test_workers_do_all_steps_in_order_and_keep_the_slack(durations, slack, consistency) -> None:
    """Every worker reads and writes every step once, in order; under SSP none reads beyond the slack."""
    workers = Workers(consistency=consistency, relative_step_times=durations, slack=slack)
    written = [0] * len(durations)
    turns = list(workers.turns(6))
    for turn in turns:
        if turn.kind == "read" and consistency != "asp":
            assert turn.step - min(written) <= (slack if consistency == "ssp" else 0)
        if turn.kind == "write":
            written[turn.worker] += 1
    for worker in range(len(durations)):
        mine = [turn for turn in turns if turn.worker == worker]
        assert mine == [Turn(worker, step, kind) for step in range(6) for kind in ("read", "write")]
