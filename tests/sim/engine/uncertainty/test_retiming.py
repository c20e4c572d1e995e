"""A finished run with other durations lasts as long as the engine says that it would."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.software import Software
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses
from sim.engine.uncertainty.longest_path import Durations, Levels, drawn_s
from sim.engine.uncertainty.retiming import retiming
from tests.examples import examples
from tests.sim.engine.uncertainty.erring import Erring, Factor, drawn_factor, model_errors
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import aiao_keys, dense_keys
from tests.sim.topology_strategies import clusters

SETTINGS = settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
FAMILIES = ("gemm", "attention", "elementwise", "optimizer", "network")
ERRORS = model_errors(dict.fromkeys(FAMILIES, 0.5), common=0.3, step=0.0)
LAUNCHES = Software(launch_s=3e-6, native_launch_s=1e-6)


def retimed(run: SimulatedRun, factors: Sequence[Factor]) -> np.ndarray:
    """Return how many times as long as it took a run takes with factors."""
    rows: dict[tuple[ErrorClass, int], int] = {}
    found = retiming(run, ErrorClasses(), lambda of, rank: rows.setdefault((of, rank), len(rows)))
    return found.relative_times(np.array([[factor(*row) for factor in factors] for row in rows]))


@SETTINGS
@given(data=st.data(), keys=dense_keys(16), coalesce=st.booleans(), folded=st.booleans(), launched=st.booleans())
def test_without_sharing_the_engine_takes_as_long(
    data: Any, keys: dict[str, Any], coalesce: bool, folded: bool, launched: bool
) -> None:
    """With nothing shared, retiming is exact: any technique, coalesced, folded or not, with stragglers and launches."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    pricing = pricing.under(LAUNCHES) if launched else pricing
    how: dict[str, Any] = {"coalesce": coalesce, "fold": fold if folded else no_fold}
    factor = drawn_factor(ERRORS, data.draw(st.integers(0, 2**20)))
    run = simulate(plan, Erring(pricing, lambda *_: 1.0, alone=True), **how)
    other = simulate(plan, Erring(pricing, factor, alone=True), **how)
    expected = [1.0, other.makespan_s / run.makespan_s, 3.0]
    if launched:  # launches do not last longer with the rest
        assert retimed(run, [lambda *_: 1.0, factor]) == pytest.approx(expected[:2], rel=1e-9)
    else:
        assert retimed(run, [lambda *_: 1.0, factor, lambda *_: 3.0]) == pytest.approx(expected, rel=1e-9)


@settings(SETTINGS, max_examples=examples(5))
@given(data=st.data(), keys=aiao_keys())
def test_the_period_of_overlapping_steps_is_retimed(data: Any, keys: dict[str, Any]) -> None:
    """Of steps without a barrier, the period is the engine's where it looks at as many of them."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    factor = drawn_factor(ERRORS, data.draw(st.integers(0, 2**20)))
    run = simulate(plan, Erring(pricing, lambda *_: 1.0, alone=True))
    other = simulate(plan, Erring(pricing, factor, alone=True))
    first, found = retimed(run, [lambda *_: 1.0, factor])
    assert first == pytest.approx(1.0)
    if run.num_steps == other.num_steps and run.is_steady and other.is_steady:
        assert found == pytest.approx(other.iteration_time_s / run.iteration_time_s)


@SETTINGS
@given(data=st.data(), keys=dense_keys(16))
def test_what_shares_is_retimed_as_it_came_out(data: Any, keys: dict[str, Any]) -> None:
    """With contention, unchanged factors give the run's own time, and a common one scales it."""
    plan = dense_plan(**keys)
    run = simulate(plan, data.draw(clusters(plan.mesh.size)))
    assert retimed(run, [lambda *_: 1.0, lambda *_: 0.5]) == pytest.approx([1.0, 0.5])


def test_a_circle_is_refused() -> None:
    """Nodes that wait for each other have no order."""
    with pytest.raises(ValueError, match="2 nodes wait for each other"):
        Levels.of(3, np.array([0, 1, 2]), np.array([1, 2, 1]), np.arange(3))
    with pytest.raises(ValueError, match="wait for each other"):
        Levels.of(3, np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([], dtype=np.int64))


@given(st.data())
def test_ends_are_longest_paths(data: st.DataObject) -> None:
    """Every node ends its duration after the latest of what it waits for, draw by draw; so do chains of nodes.

    Ends of nodes that wait for nothing may be given, and pieces may be as short as one level.
    """
    count = data.draw(st.integers(1, 12))
    num_known, most = data.draw(st.integers(0, count)), data.draw(st.integers(1, 13))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1] and max(pair) >= num_known]
    before, after = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    base_s = np.array(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), dtype=float)
    factors = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 0.0]])
    rows = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    durations, known_s = Durations(base_s, rows, factors), np.arange(3.0 * num_known).reshape(-1, 3)
    levels = Levels.of(count, before, after, np.arange(count), num_known, most)
    found = levels.ends_s(drawn_s(levels.lasting(durations), factors), known_s)[levels.rows]
    assert np.array_equal(found[:num_known], known_s)
    for node in range(num_known, count):
        waited_s = np.max([found[a] for a, b in edges if b == node] or [np.zeros(3)], axis=0)
        assert found[node] == pytest.approx(waited_s + base_s[node] * factors[rows[node]])
    wanted = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=3)), dtype=np.int64)
    chains = Levels.of(count, before, after, wanted, num_known, most)
    ends_s = chains.ends_s(drawn_s(chains.lasting(durations), factors), known_s)
    assert ends_s[chains.rows[wanted]] == pytest.approx(found[wanted])
    assert chains.latest_s(ends_s) == pytest.approx(found[~np.isin(np.arange(count), before)].max(axis=0))


def test_few_ends_are_held() -> None:
    """Where each node waits for the two before it, a piece holds the ends of two beside those of its own."""
    nodes = np.arange(100)
    before, after = np.concatenate([nodes[:-1], nodes[:-2]]), np.concatenate([nodes[1:], nodes[2:]])
    levels = Levels.of(100, before, after, nodes[-1:], most=3)
    assert [piece.ends[-1] for piece in levels.pieces] == [3, *[5] * 32, 3]


def test_pieces_are_as_large_as_what_is_kept() -> None:
    """Where the ends of many nodes are asked for at the end, they are not copied for each few more."""
    nodes = np.arange(1000)
    levels = Levels.of(1000, nodes[500:-1], nodes[501:], nodes, most=3)
    assert [(len(piece.kept), piece.ends[-1]) for piece in levels.pieces] == [(0, 501), (501, 1000)]


def test_an_op_without_duration_may_wait_for_its_launch() -> None:
    """Labels that are at hand take no time; with faster kernels before them they are launched too late."""
    plan = dense_plan(
        m=1, b=2, model=GPT | {"num_layers": 2, "tied_embeddings": False}, precision="fp32", schedule="gpipe"
    )
    pricing = pricing_on("hgx-h100", 1, devices_per_node=1).under(LAUNCHES)
    run = simulate(plan, Erring(pricing, lambda *_: 1.0, alone=True), coalesce=False)
    for seed in range(30):
        factor = drawn_factor(ERRORS, seed)
        other = simulate(plan, Erring(pricing, factor, alone=True), coalesce=False)
        assert retimed(run, [factor]) == pytest.approx(other.makespan_s / run.makespan_s, rel=1e-9), seed
