"""Rounds of measurements on a machine that others may use, too: which ones count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

QUIET: Final = 0.97
"""A round is quiet that got this part of the processor time of the best one."""


@dataclass(frozen=True, slots=True)
class Round:
    """Every benchmark once. ``figures``: seconds by key.

    ``cpu_share``: processor time over time of steps in which no rank waits for another, so 1 on a machine that does
    nothing else; None where there was no such step.
    """

    figures: Mapping[str, float]
    cpu_share: float | None


def quiet(rounds: Sequence[Round]) -> list[Round]:
    """Return the rounds in which the machine did little else: at least half of them, those with most processor time.

    A round that does not say counts as quiet.
    """
    best = max((r.cpu_share for r in rounds if r.cpu_share is not None), default=1.0)
    shares = [best if r.cpu_share is None else r.cpu_share for r in rounds]
    least = sorted(shares, reverse=True)[-(-len(rounds) // 2) - 1] if rounds else best
    return [r for r, share in zip(rounds, shares, strict=True) if share >= min(least, QUIET * best)]


def figures_of(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Return the figures of the quiet rounds by key, in their order; of what only other rounds have, theirs."""
    figures: dict[str, list[float]] = {}
    for chosen in (quiet(rounds), rounds):
        for key in dict.fromkeys(key for r in chosen for key in r.figures if key not in figures):
            figures[key] = [r.figures[key] for r in chosen if key in r.figures]
    return figures
