"""Long sequences of small records, held as columns of numbers."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar, overload

from numpy.typing import NDArray

from sim.abstract import AbstractStruct

Row = TypeVar("Row")
Column = NDArray[Any]


class Columns(Sequence[Row], AbstractStruct, frozen=True, dict=True, eq=False):
    """A sequence of records of which only those are made that are asked for; equal to a tuple of the same records."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """Return the columns, all of one length."""

    @abstractmethod
    def with_columns(self, *columns: Column) -> Self:
        """Return other records, of these columns."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Yield the records."""

    def taken(self, chosen: slice | Column) -> Self:
        """Return some of the records: a slice, those that are flagged, or those at these places."""
        return self.with_columns(*[column[chosen] for column in self.columns])

    @cached_property
    def _made(self) -> tuple[Row, ...]:
        return tuple(self.rows())

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        return iter(self._made)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Row | Self:
        if isinstance(place, slice):
            return self.taken(place)
        if "_made" in self.__dict__ or not -len(self) <= place < len(self):
            return self._made[place]
        return next(self.taken(slice(place, place + 1 or None)).rows())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))
