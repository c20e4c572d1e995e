"""Integers in as few bytes as their values need: of long columns there are many."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Integers = NDArray[np.signedinteger[Any]]
"""Signed integers of any size. Widen them before you add or multiply: results that need more bits wrap around."""

_TYPES: Final[Mapping[int, type[np.signedinteger[Any]]]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
"""Signed types by their bits."""


def integer_type(most: int) -> type[np.signedinteger[Any]]:
    """Return the smallest type of the integers from ``-1 - most`` to ``most``."""
    return next(kind for bits, kind in _TYPES.items() if most < 1 << (bits - 1))


def narrowed(values: Integers) -> Integers:
    """Return integers in the smallest type that holds them all.

    narrowed(np.array([-1, 127])).dtype    # int8
    """
    most = max(int(values.max(initial=0)), -1 - int(values.min(initial=0)))
    return values.astype(integer_type(most), copy=False)


def widened(values: Integers) -> Ints:
    """Return integers in 64 bits, to calculate with."""
    return values.astype(np.int64, copy=False)
