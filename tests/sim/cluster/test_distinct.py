"""Sorts of whole numbers, and different values among them, are those of NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.distinct import distinct, sorted_order
from tests.examples import examples


@settings(max_examples=examples(60), deadline=None)
@given(
    values=st.lists(st.integers(0, 5) | st.integers(0, 2**16) | st.integers(0, 2**31 - 1), max_size=40),
    times=st.sampled_from([1, 2**16, 2**31]),
    dtype=st.sampled_from([np.int64, np.int32]),
)
def test_values_are_sorted_as_numpy_sorts_them(values: list[int], times: int, dtype: type) -> None:
    """The order is that of a stable sort, however many digits there are; the different values are those of unique."""
    numbers = np.array(values, dtype=np.int64) * (times if dtype is np.int64 else 1)
    numbers = numbers.astype(dtype)
    assert sorted_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()
    names, places = distinct(numbers)
    assert names.tolist() == np.unique(numbers).tolist()
    assert names[places].tolist() == numbers.tolist()


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**48, 2**62])
def test_the_highest_digit_counts(largest: int) -> None:
    """Numbers that differ in their highest digit alone are told apart."""
    assert sorted_order(np.array([largest, 0, largest - 1, largest])).tolist() == [1, 2, 0, 3]
