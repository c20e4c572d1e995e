"""Whether predictions put things in the right order."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple


class Ranking(NamedTuple):
    """How many pairs were compared, and how many of them are predicted in the order measured."""

    pairs: int
    right: int

    @property
    def fraction(self) -> float:
        """Return the part that is right; 1 where there was nothing to tell apart."""
        return self.right / self.pairs if self.pairs else 1.0


def ranking(measured: Sequence[float], predicted: Sequence[float], least_difference: float = 0.1) -> Ranking:
    """Return the ranking of all pairs whose longer measured time is more than ``least_difference`` above the shorter.

    A pair that is predicted equal is wrong.
    """
    pairs = combinations(range(len(measured)), 2)
    ordered = (sorted(pair, key=lambda place: measured[place]) for pair in pairs)
    apart = [(fast, slow) for fast, slow in ordered if measured[slow] > (1.0 + least_difference) * measured[fast]]
    return Ranking(len(apart), sum(predicted[slow] > predicted[fast] for fast, slow in apart))
