"""Different values, held to ``np.unique``."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, integer_dtypes

from sim.distinct_values import distinct_values


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
