"""When the ops of a call that is one event end, against the longest paths from each of its entries."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.uncertainty.calls import CallTimes, TaskTimes

NO_PATH = float("-inf")


@st.composite
def any_predecessors(draw: Any) -> tuple[tuple[int, ...], ...]:
    """Draw what each op of a task waits for: mostly the op before it alone."""
    waits = []
    for op in range(draw(st.integers(1, 10))):
        others = st.sets(st.integers(0, op - 1), max_size=2) if op else st.just(set[int]())
        waits.append(draw(st.one_of(st.just({op - 1} - {-1}), others)))
    return tuple(tuple(sorted(found)) for found in waits)


def ends_s(predecessors: tuple[tuple[int, ...], ...], durations_s: np.ndarray, entry: int) -> list[float]:
    """Return when each op ends after an entry lets go, the longest path to it; -inf where there is none."""
    found: list[float] = []
    for op, waits in enumerate(predecessors):
        begin_s = max((found[i] for i in waits), default=NO_PATH)
        found.append(durations_s[op] + (max(begin_s, 0.0) if op == entry else begin_s))
    return found


def check_law(predecessors: tuple[tuple[int, ...], ...], entries: tuple[int, ...], seed: int) -> None:
    """Check the ends of all ops that entries lead to, draw by draw."""
    num_ops = len(predecessors)
    times = TaskTimes(tuple(float(op + 1) for op in range(num_ops)), tuple(range(num_ops)), predecessors)
    factors = np.random.default_rng(seed).uniform(0.5, 2.0, (num_ops, 3))
    by_entry = [np.stack([ends_s(predecessors, drawn_s, entry) for drawn_s in times.drawn_s(factors).T], axis=1)
                for entry in entries]  # fmt: skip
    expected = {
        (slot, op): found[op] for slot, found in enumerate(by_entry) for op in range(num_ops) if found[op, 0] > NO_PATH
    }
    call = CallTimes((times,), entries, predecessors, (), {key: row for row, key in enumerate(expected)})
    for found, wanted in zip(call.drawn(factors), expected.values(), strict=True):
        assert found == pytest.approx(wanted, rel=1e-12)


@given(predecessors=any_predecessors(), data=st.data())
def test_ops_end_after_the_longest_path_from_an_entry(predecessors: tuple[tuple[int, ...], ...], data: Any) -> None:
    """That holds for every entry of a call."""
    entries = data.draw(st.sets(st.integers(0, len(predecessors) - 1), min_size=1))
    check_law(predecessors, tuple(sorted(entries)), data.draw(st.integers(0, 2**20)))


@pytest.mark.parametrize("waits", [(1,), (1, 2), (0, 1)])
def test_what_passes_by_an_entry_does_not_delay_its_followers(waits: tuple[int, ...]) -> None:
    """Op 2 lasts longer than op 1 and waits for op 0 alone; then op 3 does not end later after op 1 lets go."""
    check_law(((), (0,), (0,), waits, (3,)), (0, 1), 0)
