"""The time of decoding steps whose context grows by a token each: sums without a term per step."""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, sqrt

from msgspec import Struct


class StepTimes(Struct, frozen=True):
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


def step_times(points: Sequence[float], times_s: Sequence[float]) -> StepTimes:
    """Return times that are given at some numbers of tokens, in ascending order."""
    inner = zip(points, points[1:], times_s, times_s[1:], strict=False)
    slopes_s = [(right_s - left_s) / (right - left) for left, right, left_s, right_s in inner]
    return StepTimes(tuple(points), (points[0], *points), (times_s[0], *times_s), (0.0, *slopes_s, 0.0))


class Run(Struct, frozen=True):
    """Iterations one after the other: ``count`` of them in ``span_s`` seconds; steps where there are several."""

    count: int
    span_s: float
    times: StepTimes | None = None
    seen: float = 0.0

    def ended(self, after_s: float) -> int:
        """Return the iterations that have ended so many seconds after the beginning."""
        if after_s >= self.span_s:
            return self.count
        if self.times is None or self.count == 1:
            return 0
        ended = self._about(after_s)
        while ended and self.times.sum_s(self.seen, ended) > after_s:
            ended -= 1
        while self.times.sum_s(self.seen, ended + 1) <= after_s:
            ended += 1
        return ended

    def first(self, count: int) -> "Run":
        """Return the first so many of several iterations."""
        assert self.times is not None, "only steps are several"
        return steps_run(self.times, self.seen, count)

    def _about(self, after_s: float) -> int:
        """Return the iterations that would have ended if times grew evenly from the first to the last."""
        assert self.times is not None, "only steps are several"
        first_s = self.times.at(self.seen)
        growth_s = 2.0 * (self.span_s / self.count - first_s) / self.count
        return min(
            self.count - 1, int(2.0 * after_s / (first_s + sqrt(max(0.0, first_s**2 + 2.0 * growth_s * after_s))))
        )


def steps_run(times: StepTimes, seen: float, count: int) -> Run:
    """Return a run of steps, the first of which sees so many tokens."""
    return Run(count, times.sum_s(seen, count), times, seen)
