"""Cached properties without a lock."""

from msgspec import Struct

from sim.cached import unlocked_property


class _Square(Struct, frozen=True, dict=True):
    side: int
    found: list[int]

    @unlocked_property
    def area(self) -> int:
        """Return the area."""
        self.found.append(self.side)
        return self.side**2


def test_a_value_is_found_once_per_object() -> None:
    """The first use finds an object's value, later ones have it; another object has its own."""
    found: list[int] = []
    squares = _Square(2, found), _Square(3, found)
    assert [square.area for square in squares for _ in range(3)] == [4, 4, 4, 9, 9, 9]
    assert found == [2, 3]


def test_the_class_shows_the_property() -> None:
    """Asked of the class, it is itself, with its text."""
    assert isinstance(_Square.area, unlocked_property)
    assert _Square.area.__doc__ == "Return the area."
