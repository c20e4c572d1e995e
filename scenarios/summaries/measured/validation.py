"""Published measurements beside their predictions: the classes behind ``simulate validate --json``."""

from typing import Any

from msgspec import Struct

from scenarios.summaries.as_json import as_json


class PredictedRow(Struct, frozen=True, kw_only=True):
    """A measured and a predicted value in the table's unit; the error is a fraction of the measured value.

    ``interval``: bounds of the prediction in 90 % of cases, ``inside``: whether the measured value lies between them;
    both None where the models' errors are not known.
    """

    name: str
    measured: float
    predicted: float
    error: float
    interval: tuple[float, float] | None
    inside: bool | None


class GroupErrors(Struct, frozen=True, kw_only=True):
    """Absolute errors of a group of rows, as fractions; ``coverage``: the fraction of rows inside their intervals."""

    group: str
    rows: int
    mean_absolute_error: float
    percentile_95: float
    worst: float
    coverage: float | None


class ErrorThresholds(Struct, frozen=True, kw_only=True):
    """The largest errors of a passing table, as fractions; ``percentile_95`` is None without such a limit."""

    mean: float
    worst: float
    percentile_95: float | None


class ValidatedTable(Struct, frozen=True, kw_only=True):
    """A table of measurements: its rows, their absolute errors as fractions, and the verdict."""

    table: str
    citation: str
    prediction: str
    unit: str
    rows: tuple[PredictedRow, ...]
    groups: tuple[GroupErrors, ...]
    mean_absolute_error: float
    percentile_95: float
    worst: float
    coverage: float | None
    thresholds: ErrorThresholds
    passed: bool


class Validation(Struct, frozen=True, kw_only=True):
    """All tables that were validated."""

    tables: tuple[ValidatedTable, ...]

    def __repr__(self) -> str:
        failed = [table.table for table in self.tables if not table.passed]
        counts = f"Validation: {len(self.tables) - len(failed)} of {len(self.tables)} tables passed"
        return f"{counts}\n  FAILED: {', '.join(failed)}" if failed else counts

    @property
    def passed(self) -> bool:
        """Return whether all tables are within their thresholds."""
        return all(table.passed for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return the tables as ``simulate validate --json`` prints them."""
        found: dict[str, Any] = as_json(self)
        return found
