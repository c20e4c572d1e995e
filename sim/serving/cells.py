"""The numbers of a column one by one: as Python's own, in a third of the time that an array takes for one."""

from typing import Protocol, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", int, float)


class Cells(Protocol[_Number]):
    """The memory of a column: what is written here stands in the array."""

    def __getitem__(self, place: int, /) -> _Number:
        """Return the number at a place."""

    def __setitem__(self, place: int, number: _Number, /) -> None:
        """Write a number."""


@overload
def cells(column: NDArray[np.int64]) -> Cells[int]: ...
@overload
def cells(column: NDArray[np.float64]) -> Cells[float]: ...
def cells(column: NDArray[np.int64] | NDArray[np.float64]) -> Cells[int] | Cells[float]:
    """Return the cells of an array."""
    return cast("Cells[int] | Cells[float]", column.data)
