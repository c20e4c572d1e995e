"""Sorts of numbers, and different values among them, are those of NumPy."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, integer_dtypes

from sim.sorting import distinct, distinct_values, first_largest, first_places, largest_first, run_begins, sorted_order
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


@pytest.mark.parametrize("largest", [2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**48, 2**62])
def test_the_highest_digit_counts(largest: int) -> None:
    """Numbers that differ in their highest digit alone are told apart."""
    assert sorted_order(np.array([largest, 0, largest - 1, largest])).tolist() == [1, 2, 0, 3]


@given(arrays(integer_dtypes(endianness="="), array_shapes(max_dims=2, min_side=0), elements=st.integers(0, 9)))
def test_whole_numbers_are_those_of_numpy(values: "np.typing.NDArray[np.int64]") -> None:
    """Each different whole number comes once, in order and of the same type, also of none and of a table."""
    found, expected = distinct_values(values), np.unique(values)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


@given(st.lists(st.floats(allow_nan=False)))
def test_other_numbers_are_those_of_numpy(values: list[float]) -> None:
    """So do other numbers, infinite ones too."""
    assert distinct_values(np.array(values)).tolist() == np.unique(np.array(values)).tolist()


@given(st.lists(st.integers(0, 3)))
def test_runs_begin_where_values_change(values: list[int]) -> None:
    """The first value of each run is marked."""
    expected = [not at or values[at - 1] != value for at, value in enumerate(values)]
    assert run_begins(np.array(values, np.int64)).tolist() == expected


@given(values=st.lists(st.integers(0, 7), max_size=20))
def test_first_places_are_those_of_lists(values: list[int]) -> None:
    """The first place of each number, and the length where there is none."""
    expected = [values.index(number) if number in values else len(values) for number in range(8)]
    assert first_places(np.array(values, np.int64), 8).tolist() == expected


def test_first_places_of_many_numbers_are_those_that_numpy_finds() -> None:
    """There are more of them than are looked at together."""
    numbers = np.random.default_rng(7).integers(0, 200_000, 150_000)
    values, places = np.unique(numbers, return_index=True)
    found = first_places(numbers, 200_000)
    assert found[values].tolist() == places.tolist()
    assert np.flatnonzero(found < len(numbers)).tolist() == values.tolist()


@pytest.mark.parametrize("middle", [0.1, 0.12345678949999999, 0.12345678950000001, 3e12])
@pytest.mark.parametrize("off", [1e-16, -2e-16, 3e-10])
def test_what_rounding_tells_apart_is_ordered_by_name(middle: float, off: float) -> None:
    """Larger values come first, and equal ones by name, on whichever side of a decimal rounding puts them."""
    sizes = {"b": middle, "a": middle * (1 + off), "none": 0.0, "less": 0.9 * middle, "most": 2 * middle}
    for names in permutations(sizes):
        assert largest_first(names, sizes.__getitem__, str) == ["most", "a", "b", "less", "none"]


@pytest.mark.parametrize("off", [0.0, 1e-16, -1e-16, 9e-12, -9e-12])
def test_of_values_that_rounding_tells_apart_the_first_is_the_largest(off: float) -> None:
    """One that is smaller by more than the slack is not."""
    assert first_largest([0.9, 1.0, 1.0 + off, 0.1], 1e-11) == 1
    assert first_largest([0.9, 1.0 - 2e-11, 1.0, 1.0 + off], 1e-11) == 2
