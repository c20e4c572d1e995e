"""The difference of two timelines: the classes behind comparison.json. Seconds are those of the mean rank's step."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from scenarios.summaries.as_json import INLINE
from scenarios.summaries.comparing.explanation import Explanation
from scenarios.summaries.recorded.recording_warning import RecordingWarning


class AlignedOps(Struct, frozen=True, kw_only=True):
    """Numbers of ops with a partner by name, of ops with a partner by kind and place, and of ops alone on each side."""

    by_name: int
    by_kind: int
    first_alone: int
    second_alone: int


class StepPart(Struct, frozen=True, kw_only=True):
    """A part of the mean rank's step on both sides, in seconds."""

    part: str
    first_s: float
    second_s: float


class PathPart(Struct, frozen=True, kw_only=True):
    """The ops of a kind on the critical path of both sides, in seconds."""

    kind: str
    first_s: float
    second_s: float


class OpShare(Struct, frozen=True, kw_only=True):
    """An op of the mean rank's step on both sides: counts, seconds, and its share of the steps' difference."""

    op: str
    first_count: int
    second_count: int
    first_s: float
    second_s: float
    difference_s: float
    share_fraction: float


class SideWarning(Struct, frozen=True, kw_only=True):
    """A doubt about one side's recording. In JSON the keys of the warning stand beside ``side``, its name."""

    side: str
    warning: Annotated[RecordingWarning, INLINE]


class ComparisonSummary(Struct, frozen=True, kw_only=True):
    """The difference of two timelines. Errors are those of the first side, as fractions of the second.

    ``notes``: reasons why a side's times may be off, or empty (see ``notes.py``).
    ``rows``, ``others`` and ``idle``: they add up to the difference of the steps.
    ``explanation``: None if a side is no simulation.
    ``mismatches``: counts of unequal work, by property.
    """

    names: tuple[str, str]
    notes: tuple[str, str]
    first_s: float
    second_s: float
    makespan_error: float
    first_ops: int
    second_ops: int
    aligned: AlignedOps
    same_work: bool
    mismatches: Mapping[str, int]
    kind_error: Mapping[str, float]
    stream_error: Mapping[str, float]
    step_time: tuple[StepPart, ...]
    critical_path: tuple[PathPart, ...]
    rows: tuple[OpShare, ...]
    others: OpShare
    idle: OpShare
    explanation: Explanation | None
    warnings: tuple[SideWarning, ...]
    passed: bool
