"""Numbers for equal values, against ``np.unique``."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.prices.numbering import numbered
from tests.examples import examples


@settings(max_examples=examples(60), deadline=None)
@given(
    values=st.lists(st.integers(-3, 3) | st.integers(-(10**12), 10**12)), repeats=st.sampled_from([1, 3, 1000]),
    rare=st.integers(-5, 5),
)  # fmt: skip
def test_values_are_numbered_as_by_a_sort(values: list[int], repeats: int, rare: int) -> None:
    """Few or many values, with a rare one at the second place, which a sample of a long array leaves out."""
    for dtype in (np.int64, np.float64):
        array = np.array([*values[:1], rare, *values[1:] * repeats], dtype=dtype)
        names, places = numbered(array)
        assert names.tolist() == sorted(set(array.tolist()))
        assert names[places].tolist() == array.tolist()
