"""Values of a long run: what is expected, and how replications spread."""

from msgspec import Struct


class Spread(Struct, frozen=True, kw_only=True):
    """Mean, 5th and 95th percentile over the replications; nine of ten runs lie between the percentiles."""

    mean: float
    low: float
    high: float


class Expectation(Struct, frozen=True, kw_only=True):
    """Expected values of the exact model. ``goodput`` is for a long run; the other two are for the whole run."""

    goodput: float
    elapsed_s: float
    interruptions: float
