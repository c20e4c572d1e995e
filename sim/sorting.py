"""Sorts of arrays of numbers, and what they show: where values begin, which ones differ."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")

_ROUNDING: Final = 1e-9
"""Sizes that differ by a smaller part may be equal."""

_BITS: Final = 16
"""Numbers of so many bits NumPy sorts by their digits, which takes an eighth of the time of comparing them."""

_FEW_BITS: Final = 8
"""Numbers of so few bits are one digit, and those of 16 bits two."""

_PIECE: Final = 2**16
"""So many numbers are looked at at once, in little new memory: a cluster may have a million links."""


def largest_first(items: Iterable[Item], size: Callable[[Item], float], name: Callable[[Item], Any]) -> list[Item]:
    """Return items by size, none negative: the largest first, and those that rounding alone may tell apart by name."""
    found, alike = list[Item](), list[Item]()
    for item in sorted(items, key=size, reverse=True):
        if alike and size(item) < (1.0 - _ROUNDING) * size(alike[0]):
            found += sorted(alike, key=name)
            alike = []
        alike.append(item)
    return found + sorted(alike, key=name)


def first_largest(values: Sequence[float], slack: float) -> int:
    """Return the place of the largest value; of those that are smaller by ``slack`` or less the first.

    first_largest([1.0, 3.0, 3.1], 0.2)    # 1
    """
    least = max(values) - slack
    return next(place for place, value in enumerate(values) if value >= least)


def run_begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where a value differs from the one before; the first one does."""
    begins = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins


def sorted_order(values: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the places of the values, none of which is negative, from the smallest on; of equal ones the first first.

    Sorts by digits of 16 bits, the last digit first, or of 8. ``np.argsort`` takes three times as long for short runs.
    """
    num_bits = int(values.max(initial=0)).bit_length()
    order = np.argsort(values.astype(np.uint8 if num_bits <= _FEW_BITS else np.uint16), kind="stable")
    for shift in range(_BITS, num_bits, _BITS):
        digits = (values >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def first_places(numbers: NDArray[np.integer[Any]], size: int) -> NDArray[np.int64]:
    """Return the first place of each number below ``size``; of one that does not occur the length."""
    found = np.full(size, len(numbers), np.int64)
    for begin in reversed(range(0, len(numbers), _PIECE)):  # of several writes the last one stays
        piece = numbers[begin : begin + _PIECE]
        found[piece[::-1]] = np.arange(begin, begin + len(piece))[::-1]
    return found


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of an array of numbers, sorted; none may be NaN.

        distinct_values(np.array([3, 1, 3]))    # array([1, 3])

    As ``np.unique`` does, whose first call imports ``numpy.ma`` to ask whether the array is masked.
    """
    in_order = np.sort(values, axis=None)
    return in_order[run_begins(in_order)]


def distinct(values: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the different values, sorted, and the place of each element's value among them.

    As ``np.unique`` does, by a sort that merges runs: loads on links come group by group, so their sort takes a seventh
    of the time.
    """
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    is_new = run_begins(in_order)
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.cumsum(is_new) - 1
    return in_order[is_new], places


def in_ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ranges' numbers, each as often as it has members, and these members: ``counts`` from ``first`` on."""
    number = np.arange(len(counts)).repeat(counts)
    return number, np.arange(len(number)) + (first - counts.cumsum() + counts)[number]
