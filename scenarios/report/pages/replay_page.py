"""The report of a replay: the recording as measured beside the same work at other speeds."""

from collections.abc import Callable, Sequence
from typing import Final

from costmodels.units import format_change, format_time
from scenarios.report.blocks import Bars, Block, Card, Fact, Headline, Only, Piece, Section, Table
from scenarios.report.pages.comparison_page import comparison_sections
from scenarios.report.pages.recorded_parts import TimeParts, ranks_in_words, time_bars, warning_sections
from scenarios.summaries.recorded.replay import RankParts, ReplayedRank, ReplaySummary
from traces.comparison.compare import Comparison, difference_s

NAMES: Final = ("replayed", "measured")
_ROWS: Final[Sequence[tuple[str, Callable[[RankParts], float]]]] = (
    ("compute", lambda parts: parts.compute_s),
    ("exposed communication", lambda parts: parts.exposed_communication_s),
    ("memory", lambda parts: parts.memory_s),
    ("idle", lambda parts: parts.idle_s),
    ("span of a rank", lambda parts: parts.span_s),
)
"""The rows of the table, each with its seconds of a rank."""


def replay_blocks(summary: ReplaySummary, comparison: Comparison | None = None) -> tuple[Block, ...]:
    """Return the report of a replay; ``comparison``: of replayed against measured ops, None for a terminal."""
    title = f"{summary.path}, {ranks_in_words(summary.num_ranks)}"
    subtitle = f"{ranks_in_words(summary.num_ranks)} · a recording, run again with changes"
    if not summary.changes:
        subtitle = f"{ranks_in_words(summary.num_ranks)} · a recording, run again without changes"
    bars = Only("page", (_time_bars(summary.ranks),))
    return (
        Headline(summary.path, subtitle, _cards(summary), title, _facts(summary)),
        Section("Where the time goes", (bars, _parts_table(summary.ranks)), "Mean over ranks."),
        *([] if comparison is None else comparison_sections(comparison, NAMES)),
        *warning_sections([warning.text for warning in summary.warnings]),
    )


def _cards(summary: ReplaySummary) -> tuple[Card, ...]:
    return (
        Card("Measured", format_time(summary.measured_s)),
        Card("Replayed", format_time(summary.replayed_s)),
        Card("Difference", _change(summary), _changes(summary) or "nothing is changed"),
    )


def _facts(summary: ReplaySummary) -> tuple[Fact, ...]:
    replayed = f"{format_time(summary.replayed_s)} ({_change(summary)})"
    return (
        Fact("measured", format_time(summary.measured_s)),
        Fact("replayed", (Piece(replayed, "strong"),)),
        Fact("changed", _changes(summary) or "nothing: how well the replay reproduces the run"),
    )


def _change(summary: ReplaySummary) -> str:
    return format_change(round(summary.span_ratio - 1, 4) + 0.0, 2)


def _changes(summary: ReplaySummary) -> str:
    return ", ".join(f"{key}={value:g}x" for key, value in summary.changes.items())


def _time_bars(ranks: Sequence[ReplayedRank]) -> Bars:
    """Return a bar of the mean rank as measured, and one as replayed."""
    means = _mean_parts([rank.measured for rank in ranks]), _mean_parts([rank.replayed for rank in ranks])
    return time_bars("time", ("measured", "replayed"), means)


def _mean_parts(ranks: Sequence[RankParts]) -> TimeParts:
    """Return the parts of the mean rank's time."""

    def mean_s(part_s: Callable[[RankParts], float]) -> float:
        return sum(map(part_s, ranks)) / len(ranks)

    busy_s = mean_s(lambda parts: parts.span_s - parts.idle_s)
    compute_s, exposed_s = mean_s(lambda parts: parts.compute_s), mean_s(lambda parts: parts.exposed_communication_s)
    return TimeParts(
        compute_s=compute_s,
        exposed_communication_s=exposed_s,
        exposed_memory_s=max(0.0, busy_s - compute_s - exposed_s),
        idle_s=mean_s(lambda parts: parts.idle_s),
    )


def _parts_table(ranks: Sequence[ReplayedRank]) -> Table:
    """Return where the time went before and after, mean over ranks."""
    rows = []
    for words, part_s in _ROWS:
        before_s = sum(part_s(rank.measured) for rank in ranks) / len(ranks)
        after_s = sum(part_s(rank.replayed) for rank in ranks) / len(ranks)
        change_s = difference_s(after_s, before_s)
        signed = f"{'-' if change_s < 0 else '+'}{format_time(abs(change_s))}"
        rows.append((words, format_time(before_s), format_time(after_s), signed))
    return Table(("mean over ranks", "measured", "replayed", "change"), rows)
