"""Why one simulated step takes longer than another: the ``explanation`` of comparison.json."""

from collections.abc import Mapping

from msgspec import Struct


class CauseDifference(Struct, frozen=True, kw_only=True):
    """A part of the mean rank's step on both sides, in seconds; the difference is first less second."""

    cause: str
    first_s: float
    second_s: float
    difference_s: float


class OpDifference(Struct, frozen=True, kw_only=True):
    """The ops of one kind on one stream on both sides, in seconds of the mean rank; first less second.

    ``first_bound_s``: seconds by kind of link that limited the ops, and ``latency``.
    ``first_fullest_fraction``: by kind of link, the used fraction of the fullest link's bandwidth. Both are empty for a
        side without such ops.
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


class LinkDifference(Struct, frozen=True, kw_only=True):
    """The busiest link of a kind on both sides: the fraction of the step in which it is busy.

    0 for a side without any.
    """

    kind: str
    first_busy_fraction: float
    second_busy_fraction: float
    difference_busy_fraction: float


class Explanation(Struct, frozen=True, kw_only=True):
    """The differences of two simulated steps, the largest first.

    ``causes``: they add up to the difference of the steps.
    ``verdict``: the same in words.
    """

    first: str
    second: str
    verdict: str
    causes: tuple[CauseDifference, ...]
    communication: tuple[OpDifference, ...]
    links: tuple[LinkDifference, ...]
