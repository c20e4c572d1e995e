"""Whether predictions put things in the right order."""

from collections.abc import Sequence
from itertools import combinations

from scenarios.summaries.measured.here import Pick, PlanRow, Ranking


def pick_of(rows: Sequence[PlanRow]) -> Pick:
    """Return what a search among the plans would choose, and how well all of them are ordered.

    Kendall's tau is over pairs of which neither prediction lies in the other's interval; others are not told apart.
    """
    chosen, fastest = (min(rows, key=time_of) for time_of in (_predicted_s, _measured_s))
    apart = [(a, b) for a, b in combinations(rows, 2) if not (_holds(a, b) or _holds(b, a))]
    signs = [1 if (a.predicted_s < b.predicted_s) == (a.measured_s < b.measured_s) else -1 for a, b in apart]
    return Pick(
        plan=chosen.plan,
        fastest=fastest.plan,
        loss=chosen.measured_s / fastest.measured_s - 1.0,
        tau=sum(signs) / len(signs) if signs else None,
        pairs=len(signs),
    )


def _predicted_s(row: PlanRow) -> float:
    return row.predicted_s


def _measured_s(row: PlanRow) -> float:
    return row.measured_s


def _holds(row: PlanRow, other: PlanRow) -> bool:
    """Return whether a plan's interval holds another's prediction."""
    return row.low_s <= other.predicted_s <= row.high_s


def ranking(measured: Sequence[float], predicted: Sequence[float], least_difference: float = 0.1) -> Ranking:
    """Return the ranking of all pairs whose longer measured time is more than ``least_difference`` above the shorter.

    A pair that is predicted equal is wrong.
    """
    pairs = combinations(range(len(measured)), 2)
    ordered = (sorted(pair, key=lambda place: measured[place]) for pair in pairs)
    apart = [(fast, slow) for fast, slow in ordered if measured[slow] > (1.0 + least_difference) * measured[fast]]
    right = sum(predicted[slow] > predicted[fast] for fast, slow in apart)
    return Ranking(pairs=len(apart), right=right, fraction=right / len(apart) if apart else 1.0)
