"""Why one simulated step takes longer than another: the ``explanation`` of comparison.json."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseDifference:
    """A part of the mean rank's step on both sides, in seconds; the difference is first less second."""

    cause: str
    first_s: float
    second_s: float
    difference_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDifference:
    """The ops of one kind on one stream on both sides, in seconds of the mean rank; first less second.

    ``first_bound_s``: seconds by kind of link that held them back, and ``latency``. ``first_fullest_fraction``: the
    part of the bandwidth that is used of the fullest link of each kind. Both are empty where a side has no such ops.
    """

    stream: str
    kind: str
    first_s: float
    second_s: float
    difference_s: float
    first_bound_s: Mapping[str, float]
    first_fullest_fraction: Mapping[str, float]
    second_bound_s: Mapping[str, float]
    second_fullest_fraction: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDifference:
    """The busiest link of a kind on both sides: the part of the step in which it is busy; 0 where a side has none."""

    kind: str
    first_busy_fraction: float
    second_busy_fraction: float
    difference_busy_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where two simulated steps differ, each part with the largest difference first.

    ``causes`` add up to the difference of the steps. ``verdict``: the same in words.
    """

    first: str
    second: str
    verdict: str
    causes: tuple[CauseDifference, ...]
    communication: tuple[OpDifference, ...]
    links: tuple[LinkDifference, ...]
