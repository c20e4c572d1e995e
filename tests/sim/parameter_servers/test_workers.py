"""Workers and parameter servers as time passes: closed forms, bounds, and the counts of the untimed protocol."""

from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.embedding.het import Clocking
from sim.embedding.het_run import HEADER_BYTES, HetRequests, HetSpec, run_het
from sim.embedding.ids import Table, id_source
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Workers
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.processes import SharedWorld
from sim.parameter_servers.prices import ServerPricing
from sim.parameter_servers.requests import UncachedRequests
from sim.parameter_servers.run import WorkerStep, WorkerTimes, run_workers
from tests.examples import examples

STEPS = 6
ROWS = np.arange(4_000)


def prices(num_workers: int, num_servers: int = 1) -> ServerPricing:
    """Return prices for a worker per node."""
    node = load_node("dgx-a100-40g")
    pricing = ClusterPricing(Cluster(node, num_workers, 1), load_profile("a100"))
    return ServerPricing(pricing, num_workers, num_servers)


def workers(consistency="asp", speeds=(1.0, 1.0, 1.0), slack=0) -> Workers:
    """Return workers whose steps take times in these proportions."""
    return Workers(consistency=consistency, relative_step_times=speeds, slack=slack)


def uncached(who: Workers, step: WorkerStep, num_servers: int = 1) -> WorkerTimes:
    """Return the times of workers that all read the same rows in each step."""
    requests = UncachedRequests([repeat(ROWS)] * who.num_workers)
    return run_workers(who, step, prices(who.num_workers, num_servers), requests, STEPS)


def test_activities_of_processes_share_resources() -> None:
    """Two activities halve each other's speed while both run; a third on another resource is not slowed."""
    world, ends = SharedWorld(), {}

    def spend(name, wait_s, resource, busy_s):
        yield from world.spend(Activity(wait_s, ((resource, busy_s),)))
        ends[name] = world.clock.now

    for one in (("a", 0.0, "link", 2.0), ("b", 1.0, "link", 2.0), ("c", 0.5, "memory", 2.0)):
        world.clock.process(spend(*one))
    world.clock.run()
    assert ends == pytest.approx({"a": 3.0, "b": 4.0, "c": 2.5})


def test_a_lone_step_is_the_sum_of_its_activities() -> None:
    """A worker on the second node, whose peer on the server's node needs no link, takes what its activities take."""
    price, step = prices(2), WorkerStep(local_s=0.5, row_bytes=512, dense_bytes=0, dense="servers")
    found = uncached(workers(speeds=(1e-9, 1.0)), step).parts_s[:, STEPS - 1, 1]
    count = np.array([float(len(ROWS))])
    asked, moved = (price.message(1, "to_servers", size * count).duration_s for size in (16, HEADER_BYTES + 512))
    rows_s, back_s = price.rows(512 * count).duration_s, price.message(1, "from_servers", 528 * count).duration_s
    assert found == pytest.approx([asked + rows_s + back_s, 0.5, moved + rows_s])
    assert price.message(0, "to_servers", count).duration_s == 0


def test_a_servers_adapter_bounds_all_workers_together() -> None:
    """With BSP all pull at once. Five share the server's memory, then those of other nodes its adapter."""
    step = WorkerStep(local_s=0.0, row_bytes=100_000, dense_bytes=0, dense="servers")
    one, two = (uncached(workers("bsp", (1.0,) * 5), step, count) for count in (1, 2))
    price, num_bytes = prices(5), np.array([100_016.0 * len(ROWS)])
    expected_s = 5 * price.rows(num_bytes).duration_s + 4 * price.message(1, "from_servers", num_bytes).duration_s
    assert one.parts_s[0].max() == pytest.approx(expected_s, rel=0.02)
    assert two.step_s(1) < 0.6 * one.step_s(1)


def test_the_sum_of_dense_gradients_waits_for_the_slowest() -> None:
    """Under ASP workers go at their own pace if layers lie on servers, and at the slowest's if all sum gradients."""
    speeds = (1.0, 1.0, 3.0)
    free, tied = (
        uncached(workers(speeds=speeds), WorkerStep(local_s=0.1, row_bytes=4, dense_bytes=8, dense=dense))
        for dense in ("servers", "all_reduce")
    )
    assert free.ends_s[-1] == pytest.approx(0.1 * STEPS * np.array(speeds), rel=0.05)
    assert tied.ends_s[-1] == pytest.approx(0.3 * STEPS, rel=0.05)


@pytest.mark.parametrize("slack", [0, 2])
def test_no_worker_is_further_ahead_than_its_slack(slack: int) -> None:
    """Under SSP a step begins once all have written the step ``slack`` + 1 before it."""
    step = WorkerStep(local_s=0.1, row_bytes=4, dense_bytes=8, dense="servers")
    found = uncached(workers("ssp", (1.0, 1.0, 3.0), slack), step)
    begins_s = found.ends_s - found.parts_s.sum(axis=0)
    assert (begins_s[slack + 1 :] >= found.ends_s[: STEPS - slack - 1].max(axis=1, keepdims=True) - 1e-12).all()
    assert begins_s[slack, :2].max() < found.ends_s[0].max()


@settings(max_examples=examples(6), deadline=None)
@given(bound=st.integers(0, 3), num_workers=st.integers(1, 4), seed=st.integers(0, 99))
def test_timed_workers_count_what_the_protocol_counts(bound: int, num_workers: int, seed: int) -> None:
    """Under BSP no order of requests within a step matters: pulled and pushed rows are those of workers in turn."""
    tables = [Table(name="t", num_rows=60, num_lookups=2, zipf=1.0)]
    spec = HetSpec(
        workers=workers("bsp", (1.0,) * num_workers),
        clocking=Clocking(read_bound=bound, write_bound=bound),
        cache=CacheSpec(num_slots=30, policy="lru", warm_up=0.0),
    )
    requests = HetRequests(id_source(tables, seed), spec, STEPS, 8, seed)
    step = WorkerStep(local_s=1e-5, row_bytes=64, dense_bytes=100)
    run_workers(spec.workers, step, prices(num_workers), requests, STEPS)
    timed, counted = requests.ended(), run_het(tables, spec, STEPS, 8, seed)
    for name in ("unique", "pulled", "stale", "pushed", "evicted", "flushed", "clocks"):
        assert getattr(timed, name).tolist() == getattr(counted, name).tolist()
