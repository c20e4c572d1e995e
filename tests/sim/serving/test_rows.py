"""Rows that are counted once for all equal rows that are counted one by one."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.serving.rows.drawn import DrawnRows, Ints
from sim.serving.rows.row import GoneRow, Row, Rows
from sim.serving.rows.steady import SteadyRows
from tests.examples import examples

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "decode", "decode", "preempt", "fail"]),
        st.integers(1, 40),
        st.integers(0, 3),
    ),
    max_size=40,
)


def one_each(requests: Ints, steps: Ints, count: int) -> Ints:
    """Return a token for each request in each of so many steps."""
    del steps
    return np.ones((count, len(requests)), dtype=np.int64)


def after(rows: Rows, event: str, row: Row, num_steps: int, held: int) -> tuple[int, int, Sequence[GoneRow]]:
    """Return blocks that are lacking and let go, and rows that leave, when a row joins or others decode or leave."""
    if event == "join":
        rows.add(row)
    elif len(rows) and event == "preempt":
        return 0, 0, [rows.take_last()]
    elif event == "fail":
        return 0, 0, rows.take_all()
    elif len(rows):
        lacking = rows.lacking(held)
        rows.hold(held)
        freed = rows.loosen(num_steps)
        rows.decode(num_steps)
        return lacking, freed, rows.take_done()
    return 0, 0, []


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 17), EVENTS)
def test_steady_rows_are_rows_that_draw_a_token_in_each_step(
    block_tokens: int, events: list[tuple[str, int, int]]
) -> None:
    """Rows join, decode, are preempted and lost in any order: both know the same blocks, tokens and rows."""
    steady, drawn = SteadyRows(block_tokens), DrawnRows(block_tokens, 1, one_each)
    for number, (event, size, pieces) in enumerate(events):
        row = Row(number, size + pieces * block_tokens, 1 + size % 7, pieces * block_tokens, float(number))
        num_steps, held = steady.steps_left(1 + pieces), steady.steps_left(1 + pieces + size)
        left, right = (after(rows, event, row, num_steps, held) for rows in (steady, drawn))
        assert left == right
        known = [(len(rows), rows.sum_held, rows.steps_left(30), rows.num_blocks) for rows in (steady, drawn)]
        assert known[0] == known[1]
