"""Numbers for equal values: what ``np.unique`` returns, found faster where equal values lie side by side."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sim.sorting import distinct_values, first_places, run_begins

Ints = NDArray[np.int64]

_SAMPLE: Final = 2000
_FEW: Final = 16
"""The place among so few names is found by comparing with each, as a search takes longer."""


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the different values, sorted, and the place of each element's value among them.

    Ranks and links of one kind follow each other, so only the first of each run is looked at. Mostly there are few
    different ones, of which a sample has all or nearly all; where it has not, all are sorted.
    """
    begins = run_begins(values)
    has_runs = 2 * np.count_nonzero(begins) <= len(values)
    at = np.flatnonzero(begins) if has_runs else np.arange(0)
    firsts = values[at] if has_runs else values
    names = distinct_values(firsts[_spread(len(firsts))] if len(firsts) > _SAMPLE else firsts)
    places = _places(names, firsts)
    missing = firsts[names[places] != firsts]
    if 4 * len(missing) > len(firsts):
        names, places = np.unique(firsts, return_inverse=True)
    elif len(missing):
        names = distinct_values(np.concatenate([names, missing]))
        places = _places(names, firsts)
    return names, np.repeat(places, np.diff(at, append=len(values))) if has_runs else places


def in_order_of_first(values: NDArray[np.integer[Any]]) -> Ints:
    """Return the place of each element's value in the order in which the values first occur."""
    names, places = numbered(values)
    order = np.empty(len(names), np.int64)
    order[np.argsort(first_places(places, len(names)))] = np.arange(len(names))
    return order[places]


def numbered_to_ten_digits(values: NDArray[np.float64]) -> Ints:
    """Return a number per value, the same for values that are equal to ten digits of the largest."""
    names, places = numbered(values)
    scale = max(float(np.abs(names).max(initial=0.0)), 1e-300)
    return numbered(np.round(names / scale, 10))[1][places]


def _spread(length: int) -> Ints:
    """Return places of a sample: multiples of the golden ratio, as no pattern in the values has their period."""
    return (np.arange(_SAMPLE) * ((5**0.5 - 1) / 2) % 1.0 * length).astype(np.int64)


def _places(names: NDArray[Any], values: NDArray[Any]) -> Ints:
    """Return the place of each value among sorted names, or a place of another name if it is none of them."""
    if len(names) <= _FEW:
        places = np.zeros(len(values), np.int8)
        for name in names[1:]:
            places += values >= name
        return places.astype(np.int64)
    return np.minimum(np.searchsorted(names, values), len(names) - 1)
