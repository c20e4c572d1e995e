"""Runs of decoding steps: their sums and ends are those of single steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.serving.prices.steps import ContextTimes, context_times, even_steps, listed_steps
from tests.examples import examples


@st.composite
def curves(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Draw points, some closer than a token, and positive times that rise and fall."""
    gaps = draw(st.lists(st.floats(0.1, 60.0), max_size=6))
    points = np.cumsum([draw(st.floats(1.0, 50.0)), *gaps]).tolist()
    return points, [draw(st.floats(0.5, 2.0)) for _ in points]


@settings(max_examples=examples(60), deadline=None)
@given(curves(), st.floats(0.0, 150.0), st.integers(1, 200))
def test_a_sum_without_terms_is_the_sum_of_the_terms(
    curve: tuple[list[float], list[float]], seen: float, count: int
) -> None:
    """Steps over several pieces, before the first point and after the last, take what they take one by one."""
    times = context_times(*curve)
    single_s = np.interp(seen + np.arange(count), *curve)
    assert [times.at(seen + step) for step in range(count)] == pytest.approx(single_s.tolist())
    assert times.sum_s(seen, count) == pytest.approx(single_s.sum(), rel=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(curves(), st.floats(0.0, 150.0), st.integers(1, 200), st.floats(0.0, 1.1))
def test_ended_steps_are_those_whose_sum_has_passed(
    curve: tuple[list[float], list[float]], seen: float, count: int, part: float
) -> None:
    """At any instant, and at the very end of a step, a run has ended as many steps as it had time for."""
    times = context_times(*curve)
    run = even_steps(times, seen, count)
    assert run.ended(part * run.span_s) == ended_one_by_one(times, seen, count, part * run.span_s)
    place = max(1, int(part * count) % (count + 1))
    assert run.ended(times.sum_s(seen, place)) == place
    assert run.first(place) == even_steps(times, seen, place)
    listed = listed_steps(times, seen + np.arange(count), 0.0)
    assert (listed.count, listed.span_s) == (count, pytest.approx(run.span_s))
    assert abs(listed.ended(part * run.span_s) - run.ended(part * run.span_s)) <= 1
    assert listed.first(place).span_s == pytest.approx(times.sum_s(seen, place))


def ended_one_by_one(times: ContextTimes, seen: float, count: int, after_s: float) -> int:
    """Return the ended steps by trying every number of them."""
    return sum(times.sum_s(seen, number) <= after_s for number in range(1, count + 1))
