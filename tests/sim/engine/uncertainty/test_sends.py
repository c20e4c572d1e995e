"""Sends that need not wait for the ones before them, and draws in which they must."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.spread import NETWORK
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses
from sim.engine.uncertainty.retiming import Retiming, retiming
from sim.engine.uncertainty.sends import SendsInOrder
from tests.examples import examples
from tests.sim.engine.uncertainty.erring import Erring
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters

NETWORK_FACTORS = [1.0, 3.0, 100.0, 1000.0]


def run_of(schedule: str, *, coalesce: bool = True) -> SimulatedRun:
    """Return the run of four stages on four nodes."""
    plan = dense_plan(pp=4, m=40, b=40, schedule=schedule, model=GPT | {"num_layers": 4})
    return simulate(plan, pricing_on("hgx-h100", plan.mesh.size, devices_per_node=1), coalesce=coalesce)


def retimed(run: SimulatedRun, *, sends_wait: bool = False) -> tuple[Retiming, dict[tuple[ErrorClass, int], int]]:
    """Return the retiming of a run, and the rows of its factors."""
    rows: dict[tuple[ErrorClass, int], int] = {}
    found = retiming(
        run, ErrorClasses(), lambda of, rank: rows.setdefault((of, rank), len(rows)), sends_wait=sends_wait
    )
    return found, rows


def drawn(rows: dict[tuple[ErrorClass, int], int]) -> np.ndarray:
    """Return the factors of four draws, in which only transfers take longer than predicted, the last 1,000 times."""
    return np.array([NETWORK_FACTORS if of.family == NETWORK else [1.0] * 4 for of, _ in rows])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_step_takes_as_long_as_where_all_sends_wait(schedule: str) -> None:
    """In every draw, in one whole run and in one that repeats its period, of which most sends need not wait."""
    run = run_of(schedule)
    assert (run.repeated is not None) == (schedule == "1f1b")
    (found, rows), (waiting, _) = retimed(run), retimed(run, sends_wait=True)
    assert 2 * len(found.in_order.sends) > len(run.graph.message_columns[0])
    assert not len(waiting.in_order.sends)
    times = found.relative_times(drawn(rows))
    assert times[0] == pytest.approx(1.0, rel=1e-12)
    assert times == pytest.approx(waiting.relative_times(drawn(rows)), rel=1e-12)


@settings(max_examples=examples(5), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), keys=dense_keys(16), seed=st.integers(0, 2**20))
def test_any_step_takes_as_long_as_where_all_sends_wait(data: Any, keys: dict[str, Any], seed: int) -> None:
    """With any technique and what shares links, where transfers err much and others a little."""
    plan = dense_plan(**keys)
    run = simulate(plan, data.draw(clusters(plan.mesh.size)))
    (found, rows), (waiting, _) = retimed(run), retimed(run, sends_wait=True)
    sigma = np.array([1.5 if of.family == NETWORK else 0.3 for of, _ in rows])
    errors = np.exp(sigma[:, None] * np.random.default_rng(seed).standard_normal((len(rows), 8)))
    assert found.relative_times(errors) == pytest.approx(waiting.relative_times(errors), rel=1e-9)


def test_draws_in_which_sends_outlast_calls_need_the_order_of_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow sends are told, and without their order a step of GPipe, which sends one after the other, is too short."""
    found, rows = retimed(run_of("gpipe"))
    assert found.in_order.outlast(found.durations(drawn(rows))).tolist() == [False, False, True, True]
    times = found.relative_times(drawn(rows))
    monkeypatch.setattr(SendsInOrder, "outlast", lambda *_: np.zeros(4, np.bool_))
    assert (found.relative_times(drawn(rows)) < 0.99 * times).tolist() == [False, False, True, True]


def test_sends_that_are_as_long_as_calls_wait_for_the_ones_before() -> None:
    """Where transfers take 100 times as long, no draw has to be retimed twice."""
    plan = dense_plan(pp=4, m=8, b=8, schedule="gpipe", model=GPT | {"num_layers": 4})
    slow = pricing_on("hgx-h100", plan.mesh.size, devices_per_node=1)
    run = simulate(plan, Erring(slow, lambda found, _: 100.0 if found.family == NETWORK else 1.0))
    assert len(run.graph.message_columns[0])
    assert not len(retimed(run)[0].in_order.sends)


def test_sends_of_ops_that_are_nodes_wait_for_the_ones_before() -> None:
    """No call is one event, so of no send it is known that it is over in time."""
    found, _ = retimed(run_of("1f1b", coalesce=False))
    assert not len(found.in_order.sends)
    assert found.relative_times(np.ones((1000, 1)))[0] == pytest.approx(1.0, rel=1e-12)
