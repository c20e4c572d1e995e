"""A recording replayed at other speeds: the classes behind ``simulate replay --json``."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from scenarios.summaries.recorded.recording_warning import RecordingWarning

REPLAY_SCHEMA: Final = "meshtwin.replay/1"


class RankParts(Struct, frozen=True, kw_only=True):
    """The parts of a rank's time, in seconds; ``span_s`` is from its first activity to its last."""

    span_s: float
    compute_s: float
    exposed_communication_s: float
    memory_s: float
    idle_s: float


class ReplayedRank(Struct, frozen=True, kw_only=True):
    """A rank's time as measured and as replayed."""

    rank: int
    measured: RankParts
    replayed: RankParts


class ReplaySummary(Struct, frozen=True, kw_only=True):
    """The figures of a replay. ``span_ratio``: the new time over the measured one.

    ``changes``: speeds by the user's keys.
    ``latency_s``: the estimated latency of each kind of collective.
    """

    schema: str = REPLAY_SCHEMA
    path: str
    num_ranks: int
    changes: Mapping[str, float]
    measured_s: float
    replayed_s: float
    span_ratio: float
    inferred_dependencies: int
    latency_s: Mapping[str, float]
    ranks: tuple[ReplayedRank, ...]
    warnings: tuple[RecordingWarning, ...]
