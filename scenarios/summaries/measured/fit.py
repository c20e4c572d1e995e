"""Constants that were fitted to measured steps: the classes behind ``simulate fit --json``."""

from typing import Final

from msgspec import Struct

FIT_SCHEMA: Final = "meshtwin.fit/1"


class FittedConstant(Struct, frozen=True, kw_only=True):
    """A constant: its start, the fitted value and the relative standard error.

    The standard error is None if the fit ended at a limit (``at_limit``) or the steps do not determine the value.
    """

    name: str
    start: float
    value: float
    standard_error: float | None
    at_limit: bool


class FitErrors(Struct, frozen=True, kw_only=True):
    """Absolute errors of rows, as fractions; ``root_mean_square`` is that of log(predicted/measured)."""

    rows: int
    mean_absolute_error: float
    percentile_95: float
    worst: float
    root_mean_square: float


class FitRow(Struct, frozen=True, kw_only=True):
    """A measured step: whether constants were fitted to it, and its error as a fraction of the measured time."""

    name: str
    fitted: bool
    error: float


class FitSummary(Struct, frozen=True, kw_only=True):
    """The fitted constants, and the errors of all rows; ``fitted`` and ``held_out`` are None without such rows."""

    schema: str = FIT_SCHEMA
    constants: tuple[FittedConstant, ...]
    fitted: FitErrors | None
    held_out: FitErrors | None
    rows: tuple[FitRow, ...]
