"""Two timelines side by side, for the command line."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scenarios.comparing.explanation import explain
from scenarios.report.blocks import Block
from scenarios.report.pages.comparison_page import comparison_blocks
from scenarios.results.files import write_compared
from scenarios.results.result import Result, names_of, read_result
from traces.comparison.compare import Comparison, Totals, compare
from traces.errors import TraceError
from traces.kineto.rank import StepWindow


@dataclass(frozen=True, slots=True)
class Compared:
    """How two timelines differ. ``found``: comparison.json."""

    found: dict[str, Any]
    comparison: Comparison
    names: tuple[str, str]

    @property
    def passed(self) -> bool:
        """Return whether they differ by no more than the threshold."""
        return bool(self.found["passed"])

    def blocks(self) -> Sequence[Block]:
        """Return what a page says of it."""
        title = f"{self.names[0]} against {self.names[1]}"
        explanation = self.found["explanation"]
        return comparison_blocks(self.comparison, names=self.names, title=title, explanation=explanation)

    def write(self, out: Path) -> None:
        """Write comparison.json and report.html into a folder."""
        write_compared(self.found, self.blocks(), out)


def run(first: Path, second: Path, *, fail_above: float | None = None, window: StepWindow | None = None) -> Compared:
    """Return how two results differ: timeline.parquet, the folder of one, or a profile (its steps in ``window``).

    Raises TraceError for a file that is no timeline.
    """
    results = read_result(first, window), read_result(second, window)
    try:
        return compared(results, names_of(first, second), fail_above)
    except TraceError as error:
        raise TraceError(f"{first}, {second}", error.rule, error.remedy) from error


def compared(results: tuple[Result, Result], names: tuple[str, str], fail_above: float | None = None) -> Compared:
    """Return how two results differ.

    ``passed`` is false past ``fail_above`` (a fraction): the makespan's error counts, and between two runs of a plan
    different work (ops, order on a stream, bytes) as 100 %. ``explanation``: what decides between two simulations, None
    where one is none. Raises TraceError for timelines that do not compare.
    """
    comparison = compare(results[0].timeline, results[1].timeline)
    worst = _error(comparison, results)
    found = {
        "names": list(names),
        **_totals(comparison),
        **_step(comparison),
        "explanation": _explanation(results, names),
        "warnings": [{"side": name, **doubt.entry()} for name, result in zip(names, results, strict=True)
                     for doubt in result.warnings],
        "passed": fail_above is None or worst <= fail_above,
    }  # fmt: skip
    return Compared(found, comparison, names)


def _error(comparison: Comparison, results: Sequence[Result]) -> float:
    """Return the error that a threshold is held against."""
    recorded = any(result.recorded for result in results)
    return abs(comparison.makespan_error) if recorded else comparison.worst_error


def _explanation(results: Sequence[Result], names: tuple[str, str]) -> dict[str, Any] | None:
    first, second = (result.summary for result in results)
    return None if first is None or second is None else explain(first, second, names)


def _totals(comparison: Comparison) -> dict[str, Any]:
    alignment = comparison.alignment
    return {
        "first_s": comparison.first_s,
        "second_s": comparison.second_s,
        "makespan_error": comparison.makespan_error,
        "first_ops": len(comparison.sides.first),
        "second_ops": len(comparison.sides.second),
        "aligned": {
            "by_name": int(alignment.by_name.sum()),
            "by_kind": int((~alignment.by_name).sum()),
            "first_alone": len(alignment.first_alone),
            "second_alone": len(alignment.second_alone),
        },
        "same_work": comparison.same_work,
        "mismatches": {what: count for what, count in comparison.mismatches.items() if count},
        "kind_error": {t.key: t.error for t in comparison.by_kind if t.error is not None},
        "stream_error": {t.key: t.error for t in comparison.by_stream if t.error is not None},
    }


def _step(comparison: Comparison) -> dict[str, Any]:
    """Return where the step goes on both sides, and the ops that explain most of the difference."""
    parts = [asdict(step) for step in comparison.step_times]
    paths = comparison.critical_paths_s
    explained = comparison.explained
    return {
        "step_time": [
            {"part": part.removesuffix("_s"), "first_s": parts[0][part], "second_s": parts[1][part]}
            for part in parts[0]
            if part != "step_s"
        ],
        "critical_path": [
            {"kind": kind, "first_s": paths[0].get(kind, 0.0), "second_s": paths[1].get(kind, 0.0)}
            for kind in sorted({*paths[0], *paths[1]})
        ],
        "rows": [_row(*share) for share in explained.ops],
        "others": _row(*explained.others),
        "idle": _row(*explained.idle),
    }


def _row(entry: Totals, share_fraction: float) -> dict[str, Any]:
    """Return what an op, or all that are left, have of the mean rank's step on both sides; shares add up to 1."""
    return {
        "op": entry.key,
        "first_count": entry.num_first,
        "second_count": entry.num_second,
        "first_s": entry.first_s,
        "second_s": entry.second_s,
        "difference_s": entry.difference_s,
        "share_fraction": share_fraction,
    }
