"""The errors of a profile on measured calls: the classes behind ``simulate residuals --json``."""

from msgspec import Struct


class FamilyErrors(Struct, frozen=True, kw_only=True):
    """The errors of a family's calls longer than a limit, as fractions of the measured time.

    ``bias``: the mean error with its sign.
    ``coverage``: the fraction of calls inside their 90 % intervals, None if the profile states none.
    """

    family: str
    longer_than_s: float
    calls: int
    mean_absolute_error: float
    median: float
    percentile_90: float
    percentile_95: float
    worst: float
    bias: float
    coverage: float | None


class JudgedCall(Struct, frozen=True, kw_only=True):
    """A call's measured and predicted time; the error is a fraction of the measured time."""

    call: str
    measured_s: float
    predicted_s: float
    error: float


class ProfileErrors(Struct, frozen=True, kw_only=True):
    """The errors of a profile on measured tables, by family and length of call, and the worst calls."""

    node: str
    profile: str
    tables: tuple[str, ...]
    families: tuple[FamilyErrors, ...]
    worst: tuple[JudgedCall, ...]
    passed: bool
