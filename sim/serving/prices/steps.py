"""Times of decoding steps whose context grows, and runs of steps; evenly growing ones are summed without terms."""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ContextTimes(Struct, frozen=True):
    """The time of one step in seconds by the tokens that its rows see in the mean.

    It is linear between points, and constant before the first and after the last. Piece ``i`` ends before point ``i``:
    at ``starts[i]`` it has the time ``heights_s[i]``, and each token more takes ``slopes_s[i]``.
    """

    points: tuple[float, ...]
    starts: tuple[float, ...]
    heights_s: tuple[float, ...]
    slopes_s: tuple[float, ...]

    def at(self, seen: float) -> float:
        """Return the time of a step whose rows see so many tokens."""
        piece = bisect_right(self.points, seen)
        return self.heights_s[piece] + self.slopes_s[piece] * (seen - self.starts[piece])

    def sum_s(self, seen: float, count: int) -> float:
        """Return the time of so many steps, the first of which sees ``seen`` tokens, and each later one a token more.

        The steps in one piece are an arithmetic series.
        """
        found_s, piece = 0.0, bisect_right(self.points, seen)
        while True:
            slope_s = self.slopes_s[piece]
            first_s = self.heights_s[piece] + slope_s * (seen - self.starts[piece])
            here = count
            if piece < len(self.points) and seen + count > self.points[piece]:
                here = min(count, ceil(self.points[piece] - seen))
            found_s += here * (first_s + 0.5 * (here - 1) * slope_s)
            if here == count:
                return found_s
            seen, count = seen + here, count - here
            piece = bisect_right(self.points, seen, piece)


def context_times(points: Sequence[float], times_s: Sequence[float]) -> ContextTimes:
    """Return times that are given at some numbers of tokens, in ascending order."""
    inner = zip(points, points[1:], times_s, times_s[1:], strict=False)
    slopes_s = [(right_s - left_s) / (right - left) for left, right, left_s, right_s in inner]
    return ContextTimes(tuple(points), (points[0], *points), (times_s[0], *times_s), (0.0, *slopes_s, 0.0))


class Run(Protocol):
    """Iterations one after the other: ``count`` of them in ``span_s`` seconds."""

    @property
    def count(self) -> int:
        """Return the number of iterations."""

    @property
    def span_s(self) -> float:
        """Return the time from the beginning of the first to the end of the last."""

    def ended(self, after_s: float) -> int:
        """Return the iterations that have ended so many seconds after the beginning."""

    def first(self, count: int) -> "Run":
        """Return the first so many iterations, at least one."""


class OneIteration(Struct, frozen=True):
    """A single iteration."""

    span_s: float
    count: int = 1

    def ended(self, after_s: float) -> int:
        """Return 1 if it has ended so many seconds after the beginning, else 0."""
        return int(after_s >= self.span_s)

    def first(self, count: int) -> Run:
        """Return the iteration."""
        assert count == 1, "there is only one"
        return self


class EvenSteps(Struct, frozen=True):
    """Steps of which each sees a token more than the one before; the first sees ``seen``."""

    times: ContextTimes
    seen: float
    count: int
    span_s: float

    def ended(self, after_s: float) -> int:
        """Return the steps that have ended so many seconds after the beginning."""
        if after_s >= self.span_s:
            return self.count
        ended = self._about(after_s)
        while ended and self.times.sum_s(self.seen, ended) > after_s:
            ended -= 1
        while self.times.sum_s(self.seen, ended + 1) <= after_s:
            ended += 1
        return ended

    def first(self, count: int) -> Run:
        """Return the first so many steps."""
        return even_steps(self.times, self.seen, count)

    def _about(self, after_s: float) -> int:
        """Return the steps that would have ended if times grew evenly from the first to the last."""
        first_s = self.times.at(self.seen)
        growth_s = 2.0 * (self.span_s / self.count - first_s) / self.count
        root_s = sqrt(max(0.0, first_s**2 + 2.0 * growth_s * after_s))
        return min(self.count - 1, int(2.0 * after_s / (first_s + root_s)))


def even_steps(times: ContextTimes, seen: float, count: int) -> EvenSteps:
    """Return so many steps, the first of which sees so many tokens."""
    return EvenSteps(times, seen, count, times.sum_s(seen, count))


class ListedSteps(Struct, frozen=True):
    """Steps of which each sees as many tokens more as it likes. ``ends_s``: of each, from the beginning."""

    ends_s: Floats

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return len(self.ends_s)

    @property
    def span_s(self) -> float:
        """Return the time from the beginning of the first to the end of the last."""
        return float(self.ends_s[-1])

    def ended(self, after_s: float) -> int:
        """Return the steps that have ended so many seconds after the beginning."""
        return int(np.searchsorted(self.ends_s, after_s, side="right"))

    def first(self, count: int) -> Run:
        """Return the first so many steps."""
        return ListedSteps(self.ends_s[:count])


def listed_steps(times: ContextTimes, seen: Floats, beside_s: float) -> ListedSteps:
    """Return a step for each number of tokens that is seen, and takes so much time beside."""
    each_s = np.interp(seen, times.points, times.heights_s[1:]) + beside_s
    return ListedSteps(each_s.cumsum())
