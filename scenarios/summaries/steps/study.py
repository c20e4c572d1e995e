"""The summary of a long run: the ``reliability`` object of summary.json (docs/results.md explains its keys)."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sim.reliability.study import Expectation, Spread

TIMES: Final = ("useful", "lost", "checkpoint", "restart", "waiting")
"""The parts of a run's time; keys of ``time_s``."""


class Goodput(Spread, frozen=True, kw_only=True):
    """The fraction of the time that trains, and the standard error of its mean."""

    standard_error: float


class StudySummary(Struct, frozen=True, kw_only=True):
    """Simulated runs on hardware that fails, with the closed forms."""

    mtbf_s: float
    stall_s: float
    background_s: float
    restart_s: float
    interval_s: float
    interval_steps: int
    best_interval_s: float
    young_interval_s: float
    daly_interval_s: float
    replications: int
    goodput: Goodput
    elapsed_s: Spread
    steps: Spread
    interruptions: Spread
    interruptions_by_part: Mapping[str, float]
    time_s: Mapping[str, Spread]
    expected: Expectation | None
