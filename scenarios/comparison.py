"""Two timelines side by side, for the command line."""

from pathlib import Path
from typing import Any

from traces.compare import Comparison, compare
from traces.errors import TraceError
from traces.parquet import read_timeline


def run(simulated: Path, real: Path, *, fail_above: float | None = None) -> dict[str, Any]:
    """Return how two timeline.parquet files differ; ``passed`` is false past ``fail_above`` (a fraction).

    The makespan's error counts, and different work (ops, order on a stream, bytes) as 100 %.
    Raises TraceError for a file that is no timeline.
    """
    first, second = read_timeline(simulated), read_timeline(real)
    try:
        comparison = compare(first, second)
    except TraceError as error:
        raise TraceError(f"{simulated}, {real}", error.rule, error.remedy) from error
    return {**_totals(comparison), "rows": _rows(comparison), "passed": _passed(comparison, fail_above)}


def _passed(comparison: Comparison, fail_above: float | None) -> bool:
    return fail_above is None or comparison.worst_error <= fail_above


def _totals(comparison: Comparison) -> dict[str, Any]:
    return {
        "first_s": comparison.simulated_s,
        "second_s": comparison.real_s,
        "makespan_error": comparison.makespan_error,
        "first_ops": comparison.num_simulated,
        "second_ops": comparison.num_real,
        "same_work": comparison.same_work,
        "mismatches": {what: count for what, count in comparison.mismatches.items() if count},
        "kind_error": {t.key: t.error for t in comparison.by_kind if t.error is not None},
        "stream_error": {t.key: t.error for t in comparison.by_stream if t.error is not None},
    }


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the ops that explain most of the difference."""
    return [
        {
            "op": explanation.totals.key,
            "count": explanation.totals.num_ops,
            "first_s": explanation.totals.simulated_s,
            "second_s": explanation.totals.real_s,
            "share_fraction": explanation.share,
        }
        for explanation in comparison.largest
    ]
