"""The period of a run: a stretch of time after which every rank is where it was, so many micro-batches further on.

A plan repeats itself once its pipeline is full. A run that leaves out repetitions passes through its period less often
than the whole run, and is otherwise the same. So the whole run is what comes before the end of the period, the period
again as often as was left out, and what comes after it, later by that many periods.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Times = NDArray[np.float64]

EQUAL: Final = 1e-11
"""Times that differ by a smaller part of a period are equal: they differ by rounding."""


class Part(Struct, frozen=True):
    """A part of a run that happens ``times`` over in a step: when it begins, and how long it lasts."""

    begin_s: float
    length_s: float
    times: int = 1

    @property
    def end_s(self) -> float:
        """Return when it ends."""
        return self.begin_s + self.length_s


class Repeated(Struct, frozen=True):
    """A run passes through its period, ``begin_s`` to ``end_s``, ``times`` more often than it was simulated.

    ``microbatches``: for how many more the calls of the next period are. ``calls``: by simulated rank and task, the
    calls of one period.
    """

    begin_s: float
    end_s: float
    times: int
    microbatches: int
    calls: Mapping[int, Mapping[str, int]]

    @property
    def length_s(self) -> float:
        """Return how long one period lasts."""
        return self.end_s - self.begin_s

    @property
    def later_s(self) -> float:
        """Return the delay of events after the period: the time of the periods that were not simulated."""
        return self.times * self.length_s

    def parts(self, until_s: float) -> tuple[Part, ...]:
        """Return the parts of a run that ends at ``until_s``, in seconds of the simulated run."""
        begin_s, end_s = self.begin_s, self.end_s
        return Part(0.0, begin_s), Part(begin_s, self.length_s, 1 + self.times), Part(end_s, until_s - end_s)

    def counts(self, starts_s: Times) -> NDArray[np.int64]:
        """Return how many ops of the step each simulated op stands for, by their starts."""
        slack_s = EQUAL * self.length_s
        inside = (starts_s >= self.begin_s - slack_s) & (starts_s < self.end_s - slack_s)
        return np.where(inside, 1 + self.times, 1)

    def stretched(self, total: Callable[[Times], Times]) -> Callable[[Times], Times]:
        """Return a total up to a moment of the whole step, from that of the simulated run."""
        edges = total(np.array([self.begin_s, self.end_s]))
        of_period = float(edges[1] - edges[0])

        def whole(moments_s: Times) -> Times:
            past = np.clip(np.floor((moments_s - self.begin_s) / self.length_s), 0, self.times)
            return np.asarray(total(moments_s - past * self.length_s) + past * of_period)

        return whole
