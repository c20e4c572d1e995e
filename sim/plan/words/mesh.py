"""The device mesh: ordered, named axes with degrees."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from sim.plan.errors import PlanError

Axes = tuple[tuple[str, int], ...]
"""Names and degrees of mesh axes, in order."""


@dataclass(frozen=True)
class Mesh:
    """Ordered, named axes with degrees, as torch's DeviceMesh has them.

    The axis order is the placement: the last axis varies fastest over ranks.
    An axis that the mesh does not have counts as one of degree 1.
    """

    axes: Axes

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise PlanError(f"mesh axes must have distinct names, got {names}")
        for name, degree in self.axes:
            if degree < 1:
                raise PlanError(f"mesh axis {name!r} must have degree 1 or more, got {degree}")

    @cached_property
    def size(self) -> int:
        """Return the number of ranks."""
        return prod(degree for _, degree in self.axes)

    @cached_property
    def _degrees(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def _strides(self) -> dict[str, int]:
        strides, stride = {}, 1
        for name, degree in reversed(self.axes):
            strides[name] = stride
            stride *= degree
        return strides

    def degree(self, *names: str) -> int:
        """Return the product of the degrees of the named axes."""
        return prod(self._degrees.get(name, 1) for name in names)

    def stride(self, name: str) -> int:
        """Return how many ranks apart neighbours along an axis are (0 for an absent axis)."""
        return self._strides.get(name, 0)

    def coordinate(self, rank: int, name: str) -> int:
        """Return a rank's coordinate along one axis."""
        return rank // self._strides[name] % self._degrees[name] if name in self._degrees else 0

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates along all axes."""
        return {name: self.coordinate(rank, name) for name, _ in self.axes}

    def index(self, rank: int, names: tuple[str, ...]) -> int:
        """Return a rank's position inside its group over ``names`` (the last name varies fastest)."""
        position = 0
        for name in names:
            position = position * self.degree(name) + self.coordinate(rank, name)
        return position

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank at these coordinates; axes left out count as 0."""
        return sum(self.stride(name) * value for name, value in coordinates.items())

    def group(self, rank: int, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ranks that share ``rank``'s coordinates outside ``names``, in group order."""
        ranks = [rank - sum(self.stride(name) * self.coordinate(rank, name) for name in names)]
        for name in names:
            steps = [self.stride(name) * place for place in range(self.degree(name))]
            ranks = [first + step for first in ranks for step in steps]
        return tuple(ranks)

    def shift(self, rank: int, name: str, offset: int) -> int:
        """Return the rank ``offset`` steps away along an axis, wrapping around."""
        here = self.coordinate(rank, name)
        return rank + ((here + offset) % self.degree(name) - here) * self.stride(name)
