"""The summary of a long run: the ``reliability`` object of summary.json (docs/results.md explains its keys)."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sim.reliability.expectation import Expectation, Spread

TIMES: Final = ("useful", "lost", "checkpoint", "restart", "waiting")
"""The parts of a run's time; keys of ``time_s``."""


class Goodput(Spread, frozen=True, kw_only=True):
    """The fraction of the time that trains, and the standard error of its mean."""

    standard_error: float


class SavingSummary(Struct, frozen=True, kw_only=True):
    """A simulated checkpoint: ``step_s`` of a step beside which a part of it is written, in ``over_steps`` such steps.

    ``snapshot_s``: until the state is in the hosts' memory, while training stands still. ``writing_alone_s``: to write
    it all to drives if nothing else ran. ``node_bytes``: of a node; ``node_host_bytes``: of these in the host's memory.
    """

    over_steps: int
    snapshot_s: float
    step_s: float
    writing_alone_s: float
    node_bytes: int
    node_host_bytes: int


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
    saving: SavingSummary | None
