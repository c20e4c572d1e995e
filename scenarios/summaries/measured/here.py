"""Plans that ran on this machine beside their predictions: the classes behind ``simulate validate --here --json``."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from scenarios.summaries.measured.calibration import CountedRuns, MeasuredMachine

HERE_SCHEMA: Final = "meshtwin.here/1"


class PlanRow(Struct, frozen=True, kw_only=True):
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


class Ranking(Struct, frozen=True, kw_only=True):
    """The number of compared pairs, the number predicted in the measured order, and its fraction; 1 without pairs."""

    pairs: int
    right: int
    fraction: float


class Pick(Struct, frozen=True, kw_only=True):
    """The plan of least predicted time, the one of least measured time, and how well all plans are ordered.

    ``loss``: the relative excess of the picked plan's measured time over the least. ``tau``: Kendall's, over the
    ``pairs`` that their intervals tell apart; None where there are none.
    """

    plan: str
    fastest: str
    loss: float
    tau: float | None
    pairs: int


class Thresholds(Struct, frozen=True, kw_only=True):
    """Limits of a passing validation.

    ``mean`` and ``worst``: the largest absolute relative errors.
    ``ranking``: the least fraction of pairs in the right order.
    """

    mean: float
    worst: float
    ranking: float


class HereSummary(Struct, frozen=True, kw_only=True):
    """Predicted against measured, plan by plan, the verdict, and how this machine was measured."""

    schema: str = HERE_SCHEMA
    plans: tuple[PlanRow, ...]
    mean_absolute_error: float
    worst: float
    coverage: float
    ranking: Ranking
    pick: Pick
    thresholds: Thresholds
    passed: bool
    machine: MeasuredMachine
    processes: int
    runs: CountedRuns
    measured: str
    date: str
    versions: Mapping[str, str]
