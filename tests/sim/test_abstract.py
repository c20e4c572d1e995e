"""Structs that may have abstract methods."""

import pickle
from abc import abstractmethod
from collections.abc import Iterator, Sized

import pytest

from sim.abstract import AbstractStruct


class Shape(AbstractStruct, frozen=True):
    """A shape of some size."""

    size: int

    @abstractmethod
    def area(self) -> int:
        """Return its area."""


class Square(Shape, frozen=True):
    """A square."""

    def area(self) -> int:
        """Return the size squared."""
        return self.size**2


class Row(Sized, AbstractStruct, frozen=True):
    """A class of abstract methods only, and a part."""

    parts: tuple[int, ...]

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def test_an_abstract_struct_cannot_be_made() -> None:
    """A Struct with a method that is still abstract is refused, by the method's name; one that has it all is made."""
    with pytest.raises(TypeError, match="area"):
        Shape(1)  # type: ignore[abstract]
    assert Square(3).area() == 9
    assert isinstance(Square(3), Shape)
    assert len(Row((1, 2))) == 2
    assert isinstance(Row(()), Sized)


def test_an_abstract_struct_is_a_frozen_record() -> None:
    """What derives from it is equal and hashed by its parts, shows them, cannot be changed, and can be pickled."""
    square = Square(3)
    assert (square, hash(square), repr(square)) == (Square(3), hash(Square(3)), "Square(size=3)")
    assert square != Square(4)
    assert pickle.loads(pickle.dumps(square)) == square
    with pytest.raises(AttributeError):
        square.size = 4  # type: ignore[misc]
