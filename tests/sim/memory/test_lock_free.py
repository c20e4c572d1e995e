"""A training and its update side by side: step times and staleness in closed form."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.memory.lock_free_run import LockFreeRun, UnitTimes, run_lock_free

UNITS = 24


def run(
    sweep_s: float, iteration_s: float, max_staleness: int | None, *, update_s: float = 0.0, num_units: int = UNITS
) -> LockFreeRun:
    """Return a run whose gradients are all there when an iteration ends."""
    half_s = sweep_s / num_units / 2
    units = [
        UnitTimes(unit=f"layer{n}", gradient_s=iteration_s, read_s=half_s, update_s=update_s, write_s=half_s)
        for n in range(num_units)
    ]
    return run_lock_free(units, iteration_s, 3 * num_units, max_staleness)


@pytest.mark.parametrize(
    ("parameters", "bytes_per_s", "iteration_s", "synchronous_s", "iterations"),
    [(10e9, 3.5e9, 8.0, 76.5714, 9), (55e9, 3.5e9, 30.0, 407.1429, 13), (10e9, 14e9, 8.0, 25.1429, 3)],
)
def test_steps_and_staleness_are_those_of_the_sweep(
    parameters: float, bytes_per_s: float, iteration_s: float, synchronous_s: float, iterations: int
) -> None:
    """A sweep moves 24 bytes per parameter. Synchronous: step and sweep add up. Free: the step alone, and an update
    applies the gradients of as many iterations as a sweep takes, rounded up.
    """
    sweep_s = 24 * parameters / bytes_per_s
    assert run(sweep_s, iteration_s, 0).step_s() == pytest.approx(synchronous_s, abs=1e-4)
    free = run(sweep_s, iteration_s, None)
    assert free.step_s() == pytest.approx(iteration_s)
    assert max(free.steady(free.gradients)) == iterations == ceil(sweep_s / iteration_s)


@given(
    sweep_s=st.floats(0.1, 50.0), update_s=st.floats(0.0, 1.0), max_staleness=st.one_of(st.none(), st.integers(0, 6))
)
def test_bounds_hold_and_more_staleness_is_never_slower(
    sweep_s: float, update_s: float, max_staleness: int | None
) -> None:
    """No iteration begins with parameters that lack more than the bound; steps end between the other two."""
    bounds = max_staleness, None, 0
    found, free, synchronous = (run(sweep_s, 1.0, bound, update_s=update_s, num_units=5) for bound in bounds)
    assert max_staleness is None or max(found.staleness) <= max_staleness
    assert free.begins_s[-1] - 1e-9 <= found.begins_s[-1] <= synchronous.begins_s[-1] + 1e-9
    assert free.step_s() == pytest.approx(1.0)
