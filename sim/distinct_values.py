"""The different values of an array."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of an array of numbers, sorted; none may be NaN.

        distinct_values(np.array([3, 1, 3]))    # array([1, 3])

    As ``np.unique`` does, whose first call imports ``numpy.ma`` to ask whether the array is masked.
    """
    in_order = np.sort(values, axis=None)
    is_first = np.ones(len(in_order), dtype=np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
    return in_order[is_first]
