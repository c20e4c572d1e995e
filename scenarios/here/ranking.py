"""Whether predictions put things in the right order."""

from collections.abc import Sequence
from itertools import combinations

from scenarios.summaries.measured.here import Ranking


def ranking(measured: Sequence[float], predicted: Sequence[float], least_difference: float = 0.1) -> Ranking:
    """Return the ranking of all pairs whose longer measured time is more than ``least_difference`` above the shorter.

    A pair that is predicted equal is wrong.
    """
    pairs = combinations(range(len(measured)), 2)
    ordered = (sorted(pair, key=lambda place: measured[place]) for pair in pairs)
    apart = [(fast, slow) for fast, slow in ordered if measured[slow] > (1.0 + least_difference) * measured[fast]]
    right = sum(predicted[slow] > predicted[fast] for fast, slow in apart)
    return Ranking(pairs=len(apart), right=right, fraction=right / len(apart) if apart else 1.0)
