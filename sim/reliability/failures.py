"""Times and components of failures: one seeded, named generator per component and replication."""

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from sim.reliability.spec import Component


class Failures:
    """The failures of one replication, in seconds of exposed time: time in which a component can fail.

    Times between failures are exponential. Each component draws from its own generator, so its failures do not depend
    on other components or on the checkpoint interval.
    """

    def __init__(self, components: Sequence[Component], seed: int, replication: int) -> None:
        self._clock_s = 0.0
        self._means_s = [1.0 / component.rate_per_s for component in components]
        self._generators = [_generator(component.name, seed, replication) for component in components]
        self._next_s = [self._draw_s(index) for index in range(len(components))]

    def within(self, length_s: float) -> tuple[float, int | None]:
        """Advance to the next failure; return the exposed time until it and the index of the failed component.

        Without a failure in the next ``length_s``, advance by ``length_s``; return it and None.
        """
        index = min(range(len(self._next_s)), key=self._next_s.__getitem__)
        gap_s = self._next_s[index] - self._clock_s
        if gap_s >= length_s:
            self._clock_s += length_s
            return length_s, None
        self._clock_s = self._next_s[index]
        self._next_s[index] += self._draw_s(index)
        return gap_s, index

    def _draw_s(self, index: int) -> float:
        return -math.log1p(-self._generators[index].random()) * self._means_s[index]


def _generator(name: str, seed: int, replication: int) -> np.random.Generator:
    key = (crc32(f"reliability.failures.{name}".encode()), replication)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
