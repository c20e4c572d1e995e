"""Distinct values and quantiles, as numpy has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.unmasked import quantiles, unique

NUMBERS = st.floats(-1e9, 1e9) | st.integers(-3, 3).map(float)


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_are_those_of_numpy(values: list[float], fractions: list[float]) -> None:
    """They are equal to the last bit, for few values and many, equal ones and fractions at either end."""
    expected = np.quantile(values, fractions, method="hazen")
    assert list(quantiles(np.array(values), fractions)) == expected.tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float64])
@given(values=st.lists(st.integers(-5, 5), max_size=30))
def test_distinct_values_are_those_of_numpy(dtype: type, values: list[int]) -> None:
    """They have numpy's order and type; of nothing there are none."""
    found, expected = unique(np.array(values, dtype)), np.unique(np.array(values, dtype))
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
