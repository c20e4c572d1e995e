"""Two timelines side by side, for the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from scenarios.comparing.explanation import explain
from scenarios.report.blocks import Block
from scenarios.report.pages.comparison_page import comparison_blocks
from scenarios.results.files import write_compared
from scenarios.results.result import Result, names_of, read_result
from scenarios.summaries.as_json import as_json
from scenarios.summaries.comparing.comparison import (
    AlignedOps,
    ComparisonSummary,
    OpShare,
    PathPart,
    SideWarning,
    StepPart,
)
from scenarios.summaries.comparing.explanation import Explanation
from scenarios.summaries.recorded.recording_warning import warnings_of
from traces.comparison.alignment import Alignment
from traces.comparison.compare import Comparison, Totals, compare
from traces.comparison.step_time import StepTime
from traces.errors import TraceError
from traces.kineto.rank import StepWindow


class Compared(Struct, frozen=True):
    """How two timelines differ: the summary behind comparison.json, and the ops of both."""

    summary: ComparisonSummary
    comparison: Comparison

    @property
    def passed(self) -> bool:
        """Return whether they differ by no more than the threshold."""
        return self.summary.passed

    def as_json(self) -> dict[str, Any]:
        """Return the summary as comparison.json holds it."""
        found: dict[str, Any] = as_json(self.summary)
        return found

    def blocks(self) -> Sequence[Block]:
        """Return what a page says of it."""
        names = self.summary.names
        title = f"{names[0]} against {names[1]}"
        return comparison_blocks(
            self.comparison, names=names, title=title, explanation=self.summary.explanation, notes=self.summary.notes
        )

    def write(self, out: Path) -> None:
        """Write comparison.json and report.html into a folder."""
        write_compared(self.as_json(), self.blocks(), out)


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
    sides, parts, explained = comparison.sides, comparison.step_times, comparison.explained
    passed = fail_above is None or _error(comparison, results) <= fail_above
    summary = ComparisonSummary(
        names=names,
        notes=(results[0].note, results[1].note),
        first_s=comparison.first_s,
        second_s=comparison.second_s,
        makespan_error=comparison.makespan_error,
        first_ops=len(sides.first),
        second_ops=len(sides.second),
        aligned=_aligned(comparison.alignment),
        same_work=comparison.same_work,
        mismatches={what: count for what, count in comparison.mismatches.items() if count},
        kind_error={t.key: t.error for t in comparison.by_kind if t.error is not None},
        stream_error={t.key: t.error for t in comparison.by_stream if t.error is not None},
        step_time=_step_time(*parts),
        critical_path=_critical_path(*comparison.critical_paths_s),
        rows=tuple(_row(*share) for share in explained.ops),
        others=_row(*explained.others),
        idle=_row(*explained.idle),
        explanation=_explanation(results, names),
        warnings=_warnings(results, names),
        passed=passed,
    )
    return Compared(summary, comparison)


def _error(comparison: Comparison, results: Sequence[Result]) -> float:
    """Return the error that a threshold is held against."""
    recorded = any(result.recorded for result in results)
    return abs(comparison.makespan_error) if recorded else comparison.worst_error


def _explanation(results: Sequence[Result], names: tuple[str, str]) -> Explanation | None:
    first, second = (result.step for result in results)
    return None if first is None or second is None else explain(first, second, names)


def _warnings(results: Sequence[Result], names: tuple[str, str]) -> tuple[SideWarning, ...]:
    return tuple(
        SideWarning(side=name, warning=warning)
        for name, result in zip(names, results, strict=True)
        for warning in warnings_of(result.warnings)
    )


def _aligned(alignment: Alignment) -> AlignedOps:
    return AlignedOps(
        by_name=int(alignment.by_name.sum()),
        by_kind=int((~alignment.by_name).sum()),
        first_alone=len(alignment.first_alone),
        second_alone=len(alignment.second_alone),
    )


def _step_time(first: StepTime, second: StepTime) -> tuple[StepPart, ...]:
    """Return where the mean rank's step goes on both sides."""
    names = [name for name in StepTime.__struct_fields__ if name != "step_s"]
    return tuple(
        StepPart(part=name.removesuffix("_s"), first_s=getattr(first, name), second_s=getattr(second, name))
        for name in names
    )


def _critical_path(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[PathPart, ...]:
    """Return what the critical paths of both sides consist of, from their seconds by kind."""
    return tuple(
        PathPart(kind=kind, first_s=first.get(kind, 0.0), second_s=second.get(kind, 0.0))
        for kind in sorted({*first, *second})
    )


def _row(entry: Totals, share_fraction: float) -> OpShare:
    """Return what an op, or all that are left, have of the mean rank's step on both sides; shares add up to 1."""
    return OpShare(
        op=entry.key,
        first_count=entry.num_first,
        second_count=entry.num_second,
        first_s=entry.first_s,
        second_s=entry.second_s,
        difference_s=entry.difference_s,
        share_fraction=share_fraction,
    )
