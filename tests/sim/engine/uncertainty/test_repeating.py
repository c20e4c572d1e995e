"""A run that passed through its period once, with other durations, lasts as long as the graph of all periods."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sim.engine.running.period import Repeated
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.longest_path import Durations, Levels, drawn_s
from sim.engine.uncertainty.repeating import Counterparts, PlacedNodes, Repeating
from tests.sim.engine.compiling.test_teams import slow_devices
from tests.sim.engine.running.test_repeated import off_by
from tests.sim.jobs import GPT, dense_plan

FIRST, NUM_PERIODS = 2, 5
"""Periods of the short form: the one that is repeated begins at moment 3, after two others."""


class Pattern(Struct, frozen=True):
    """Nodes that recur in every period: what each waits for (node, how many periods before), and draws of durations.

    ``ends``: nodes of the last period and of the one before that the node after all periods waits for.
    """

    waits: list[list[tuple[int, int]]]
    durations_s: list[list[float]]
    ends: list[tuple[int, int]]


@st.composite
def patterns(draw: Any) -> Pattern:
    """Draw up to six nodes: each waits for itself a period before, and for some others."""
    count = draw(st.integers(1, 6))
    before = st.tuples(st.integers(0, count - 1), st.integers(1, 2))
    waits = []
    for node in range(count):
        same = st.tuples(st.integers(0, node - 1), st.just(0)) if node else before
        waits.append([(node, 1), *draw(st.lists(same | before, max_size=3, unique=True))])
    seconds = st.sampled_from([0.0, 1.0, 1.01, 2.0, 3.5])
    durations_s = draw(st.lists(st.lists(seconds, min_size=3, max_size=3), min_size=count, max_size=count))
    durations_s[0] = [1.0 + lasting_s for lasting_s in durations_s[0]]
    ends = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 1)), min_size=1, max_size=4, unique=True))
    return Pattern(waits, durations_s, ends)


def graph(pattern: Pattern, num_periods: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of so many periods, and of a last node: numbers are those of a period, one after the other."""
    count = len(pattern.waits)
    edges = {
        ((period - lag) * count + before, period * count + node)
        for period in range(num_periods) for node, waits in enumerate(pattern.waits) for before, lag in waits
        if period >= lag
    }  # fmt: skip
    edges |= {((num_periods - 1 - lag) * count + node, num_periods * count) for node, lag in pattern.ends}
    before, after = np.array(sorted(edges), dtype=np.int64).T
    return before, after


def durations(pattern: Pattern, num_periods: int) -> Durations:
    """Return those of so many periods, and of a last node that takes no time."""
    count = len(pattern.waits)
    base_s = np.append(np.ones(num_periods * count), 0.0)
    return Durations(base_s, np.append(np.tile(np.arange(count), num_periods), 0), np.array(pattern.durations_s))


def last_s(pattern: Pattern, num_periods: int) -> np.ndarray:
    """Return when the last node of so many periods ends, per draw."""
    nodes = np.arange(num_periods * len(pattern.waits) + 1)
    levels, found = Levels.of(len(nodes), *graph(pattern, num_periods), nodes), durations(pattern, num_periods)
    ends_s = levels.ends_s(drawn_s(levels.lasting(found), found.factors), np.zeros((0, found.num_draws)))
    return ends_s[levels.rows].max(axis=0)


def short_form(pattern: Pattern, times: int) -> Repeating | None:
    """Return a form of ``NUM_PERIODS``, of which the last but one stands for so many more."""
    count = len(pattern.waits)
    starts_s = np.append(np.add.outer(np.arange(NUM_PERIODS), np.arange(count) / count).ravel(), NUM_PERIODS)
    units = np.append(np.repeat(np.arange(NUM_PERIODS), count), NUM_PERIODS)
    places = np.append(np.tile(np.arange(count), NUM_PERIODS), 0)
    later = np.array([*range(1, NUM_PERIODS), -1, -1])
    repeats = np.arange(NUM_PERIODS + 1) < NUM_PERIODS
    counterparts = Counterparts.of(units, places, later, repeats, starts_s)
    placed = PlacedNodes(starts_s, *graph(pattern, NUM_PERIODS), counterparts)
    return Repeating.of(placed, Repeated(FIRST + 1.0, FIRST + 2.0, times, 1, {}))


@given(pattern=patterns(), times=st.sampled_from([1, 2, 3, 10, 57]))
def test_the_last_node_ends_as_in_the_graph_of_all_periods(pattern: Pattern, times: int) -> None:
    """Whatever waits for what, across one or two periods, each draw's end is that of all periods written out."""
    form, num_periods = short_form(pattern, times), NUM_PERIODS + times
    assert form is not None
    found = form.step_s(durations(pattern, NUM_PERIODS))
    assert found == pytest.approx(last_s(pattern, num_periods), rel=1e-9)


@pytest.mark.parametrize("turns", [2, 3, 7])
@pytest.mark.parametrize("times", [1, 5, 20, 21, 100])
def test_states_may_come_back_after_several_periods(turns: int, times: int) -> None:
    """In a ring in which each node waits for the one before it a period ago as many periods take turns as it has."""
    waits = [[((node - 1) % turns, 1)] for node in range(turns)]
    pattern = Pattern(waits, [[1.0 + 0.5 * (node == 0), 0.1 * node + 1.0] for node in range(turns)], [(turns - 1, 0)])
    form, num_periods = short_form(pattern, times), NUM_PERIODS + times
    assert form is not None
    assert form.step_s(durations(pattern, NUM_PERIODS)) == pytest.approx(last_s(pattern, num_periods), rel=1e-9)


def test_a_period_whose_counterparts_are_not_known_is_none() -> None:
    """Where the next period's counterpart of what a period waits for is not found, there is no such form."""
    starts_s, units = np.arange(4.0), np.arange(4)
    found = Counterparts.of(units, np.zeros(4, np.int64), np.full(4, -1), np.ones(4, dtype=np.bool_), starts_s)
    placed = PlacedNodes(starts_s, np.array([0, 1, 2]), np.array([1, 2, 3]), found)
    assert Repeating.of(placed, Repeated(1.0, 2.0, 3, 1, {})) is None


@pytest.mark.parametrize("tp", [2, 4])
def test_draws_of_calls_of_several_ranks_are_those_of_the_whole_run(tp: int) -> None:
    """Ranks of unlike pace share each call, and the last one has more exits, for the sums: all draws are exact."""
    plan = dense_plan(tp=tp, m=24, sequence_parallel=True, model=GPT | {"dropout": 0.0, "tied_embeddings": False})
    pricing = slow_devices(1, 1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert off_by(run, whole, 64).max() < 1e-9
