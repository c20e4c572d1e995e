"""Numbers for equal values: what ``np.unique`` returns, found faster where equal values lie side by side."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SAMPLE: Final = 2000


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the different values, sorted, and the place of each element's value among them.

    Ranks and links of one kind follow each other, so only the first of each run is looked at. Mostly there are few
    different ones, which a sample has all; where it has not, all are sorted.
    """
    begins = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    at = np.flatnonzero(begins)
    firsts = values[at]
    names = np.unique(firsts[:: len(firsts) // _SAMPLE + 1])
    places = np.minimum(np.searchsorted(names, firsts), len(names) - 1)
    if not np.array_equal(names[places], firsts):
        names, places = np.unique(firsts, return_inverse=True)
    return names, np.repeat(places.ravel(), np.diff(at, append=len(values)))
