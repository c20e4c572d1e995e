"""Two timelines side by side, for the command line."""

from pathlib import Path
from typing import Any

from scenarios.explanation import explain
from scenarios.outputs import write_compared
from scenarios.results import names_of, read_result
from traces.compare import Comparison, compare
from traces.errors import TraceError


def run(simulated: Path, real: Path, *, fail_above: float | None = None, out: Path | None = None) -> dict[str, Any]:
    """Return how two results differ, each a timeline.parquet or the folder of one.

    ``passed`` is false past ``fail_above`` (a fraction): the makespan's error counts, and different work (ops, order on
    a stream, bytes) as 100 %. ``explanation``: what decides between two simulations, None where one is none. ``out``: a
    folder to write the same to, as JSON and as a page. Raises TraceError for a file that is no timeline.
    """
    (first, summary), (second, other) = read_result(simulated), read_result(real)
    try:
        comparison = compare(first, second)
    except TraceError as error:
        raise TraceError(f"{simulated}, {real}", error.rule, error.remedy) from error
    names, explanation = names_of(simulated, real), None
    if summary is not None and other is not None:
        try:
            explanation = explain(summary, other, names)
        except (KeyError, TypeError, AttributeError) as error:
            rule = f"the summary of one of them lacks what simulate writes there ({error!r})"
            raise TraceError(
                f"{simulated}, {real}", rule, "write both again with simulate SCENARIO.yaml --out"
            ) from error
    found = {
        **_totals(comparison),
        "rows": _rows(comparison),
        "explanation": explanation,
        "passed": _passed(comparison, fail_above),
    }
    if out is not None:
        write_compared(found, first, second, out, title=f"{names[0]} against {names[1]}")
    return found


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
