"""Runs of benchmarks on a shared machine, and the choice of the quiet runs."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from backends.execution.result import Execution

QUIET: Final = 0.97
"""Smallest processor share of a quiet run, relative to the best run of its benchmark."""


class Run(Struct, frozen=True):
    """One run of a benchmark. ``figures``: its measured seconds, by key.

    ``by_rank``: the figures of each rank that took part.
    ``cpu_share``: processor time of a rank divided by elapsed time, mean over ranks. Waiting lowers it below 1, by the
    same amount in every run. Other programs lower it in some runs.
    """

    benchmark: str
    figures: Mapping[str, float]
    cpu_share: float
    by_rank: tuple[Mapping[str, float], ...] = ()


class Measured(NamedTuple):
    """Every run of every benchmark, and every execution of the request that ran between them."""

    runs: list[Run]
    beside: list[Execution]


def quiet(runs: Sequence[Run]) -> list[Run]:
    """Return the quiet runs, in which other programs used little of the machine: at least half of each benchmark's."""
    shares: dict[str, list[float]] = {}
    for run in runs:
        shares.setdefault(run.benchmark, []).append(run.cpu_share)
    least = {
        key: min(sorted(found, reverse=True)[-(-len(found) // 2) - 1], QUIET * max(found))
        for key, found in shares.items()
    }
    return [run for run in runs if run.cpu_share >= least[run.benchmark]]


def figures_of(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the figures of the quiet runs by key, in their order."""
    figures: dict[str, list[float]] = {}
    for run in quiet(runs):
        for key, value in run.figures.items():
            figures.setdefault(key, []).append(value)
    return figures
