"""Plans that ran on this machine beside their predictions: the classes behind ``simulate validate --here --json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scenarios.summaries.measured.calibration import CountedRuns, MeasuredMachine

HERE_SCHEMA: Final = "meshtwin.here/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan's measured and predicted time, and the bounds of 90 % of its runs.

    ``error`` is a fraction of the measured time. ``inside``: whether the measured time lies between the bounds.
    ``spread``: the difference of the longest and the shortest run, as a fraction of the measured time.
    """

    plan: str
    measured_s: float
    predicted_s: float
    error: float
    low_s: float
    high_s: float
    inside: bool
    runs: int
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The number of compared pairs, and of those that are predicted in the measured order, and their fraction.

    The fraction is 1 where there is no pair.
    """

    pairs: int
    right: int
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """``mean`` and ``worst``: the largest absolute relative errors that pass; ``ranking``: the least part of pairs that
    must be in the right order.
    """

    mean: float
    worst: float
    ranking: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HereSummary:
    """Predicted against measured, plan by plan, the verdict, and how this machine was measured."""

    schema: str = HERE_SCHEMA
    plans: tuple[PlanRow, ...]
    mean_absolute_error: float
    worst: float
    coverage: float
    ranking: Ranking
    thresholds: Thresholds
    passed: bool
    machine: MeasuredMachine
    processes: int
    runs: CountedRuns
    measured: str
    date: str
    versions: Mapping[str, str]
