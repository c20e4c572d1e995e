"""Integers are held in the smallest type that holds them, and are the same in 64 bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.integers import integer_type, narrowed, widened

_BOUNDS = st.sampled_from([0, 7, 15, 31, 63]).map(lambda bits: 1 << bits)
_VALUES = st.builds(lambda bound, by, sign: sign * (bound + by), _BOUNDS, st.integers(-2, 2), st.sampled_from([-1, 1]))


@given(st.lists(_VALUES.filter(lambda value: -(2**63) <= value < 2**63), max_size=4))
def test_the_smallest_type_holds_the_values(values: list[int]) -> None:
    """No value changes, and in half as many bits one of them would."""
    wide = np.array(values, np.int64)
    narrow = narrowed(wide)
    assert narrow.tolist() == widened(narrow).tolist() == values
    if (half := narrow.dtype.itemsize // 2) > 0:
        assert wide.astype(f"i{half}").tolist() != values


@pytest.mark.parametrize(("most", "kind"), [(0, "i1"), (127, "i1"), (128, "i2"), (32768, "i4"), (2**31, "i8")])
def test_the_type_follows_from_the_largest_value(most: int, kind: str) -> None:
    """A signed type of one byte ends at 127."""
    assert np.dtype(integer_type(most)) == np.dtype(kind)


def test_what_is_wide_is_not_copied() -> None:
    """Integers in 64 bits are widened at no cost."""
    wide = np.arange(3)
    assert widened(wide) is wide
