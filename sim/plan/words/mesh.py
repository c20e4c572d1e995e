"""The device mesh: ordered, named axes with degrees."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.plan.errors import PlanError

Axes = tuple[tuple[str, int], ...]
"""Names and degrees of mesh axes, in order."""


class Mesh(Struct, frozen=True, dict=True):
    """Ordered, named axes with degrees, as in torch's DeviceMesh.

        Mesh((("pp", 2), ("dp", 4), ("tp", 2)))

    The axis order is the placement: the last axis varies fastest over ranks.
    ``blocks``: sides of blocks along neighbouring axes. The ranks of a block are consecutive, and so are the blocks:
        axes (a, 4), (b, 4) with blocks (a, 2), (b, 2) have ranks 0, 1, 2 and 3 at (0, 0), (0, 1), (1, 0) and (1, 1). An
        absent axis counts as one of degree 1.
    """

    axes: Axes
    blocks: Axes = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise PlanError(f"mesh axes must have distinct names, got {names}")
        for name, degree in self.axes:
            if degree < 1:
                raise PlanError(f"mesh axis {name!r} must have degree 1 or more, got {degree}")
        self._check_blocks(names)

    def _check_blocks(self, names: list[str]) -> None:
        blocked = [name for name, _ in self.blocks]
        places = [names.index(name) for name in blocked if name in names]
        if len(places) < len(blocked) or places != list(range(places[0], places[0] + len(places)) if places else ()):
            raise PlanError(f"blocks must be of neighbouring mesh axes in their order, got {blocked} of {names}")
        for name, side in self.blocks:
            if side < 1 or self._degrees[name] % side:
                raise PlanError(f"mesh axis {name!r} of degree {self._degrees[name]} has no blocks of {side}")

    @cached_property
    def size(self) -> int:
        """Return the number of ranks."""
        return prod(degree for _, degree in self.axes)

    @cached_property
    def _degrees(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def _parts(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return degree and stride of each axis' parts: over blocks, and inside a block."""
        sides, parts, stride = dict(self.blocks), defaultdict[str, list[tuple[int, int]]](list), 1
        for name, degree in reversed(self._parts_in_order(sides)):
            parts[name].insert(0, (degree, stride))
            stride *= degree
        return {name: tuple(found) for name, found in parts.items()}

    def _parts_in_order(self, sides: Mapping[str, int]) -> Axes:
        over = [(name, degree // sides.get(name, 1)) for name, degree in self.axes]
        last = max((place for place, (name, _) in enumerate(self.axes) if name in sides), default=-1)
        return (*over[: last + 1], *self.blocks, *over[last + 1 :])

    def degree(self, *names: str) -> int:
        """Return the product of the degrees of the named axes."""
        return prod(self._degrees.get(name, 1) for name in names)

    def steps(self, name: str) -> tuple[int, ...]:
        """Return the distances in ranks from the first rank to each rank along an axis; (0,) for an absent axis."""
        return self._steps.get(name, (0,))

    @cached_property
    def _steps(self) -> dict[str, tuple[int, ...]]:
        steps = {}
        for name, parts in self._parts.items():
            found = [0]
            for degree, stride in parts:
                found = [first + stride * place for first in found for place in range(degree)]
            steps[name] = tuple(found)
        return steps

    def coordinate(self, rank: int, name: str) -> int:
        """Return a rank's coordinate along one axis."""
        place = 0
        for degree, stride in self._parts.get(name, ()):
            place = place * degree + rank // stride % degree
        return place

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates along all axes."""
        return {name: self.coordinate(rank, name) for name, _ in self.axes}

    def index(self, rank: int, names: tuple[str, ...]) -> int:
        """Return a rank's position in its group over ``names`` (the last name varies fastest)."""
        position = 0
        for name in names:
            position = position * self.degree(name) + self.coordinate(rank, name)
        return position

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank at these coordinates; missing axes count as 0."""
        return sum(self.steps(name)[value] for name, value in coordinates.items() if name in self._degrees)

    def group(self, rank: int, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ranks with ``rank``'s coordinates on all axes but ``names``, in group order."""
        steps = {name: self.steps(name) for name in names}
        ranks = [rank - sum(steps[name][self.coordinate(rank, name)] for name in names)]
        for name in names:
            ranks = [first + step for first in ranks for step in steps[name]]
        return tuple(ranks)

    def ranks_along(self, rank: int, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the ranks along some axes from one on, which is the first on all of them: an axis for each."""
        ranks = np.array(rank, dtype=np.int64)
        for name in names:
            ranks = np.add.outer(ranks, np.array(self.steps(name), dtype=np.int64))
        return ranks

    def shift(self, rank: int, name: str, offset: int) -> int:
        """Return the rank ``offset`` steps away along an axis, wrapping around."""
        steps, here = self.steps(name), self.coordinate(rank, name)
        return rank + steps[(here + offset) % len(steps)] - steps[here]
