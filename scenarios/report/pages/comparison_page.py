"""The page that compares two timelines: their difference, both drawn, the causes of the difference, op by op."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from msgspec.structs import replace

from costmodels.units import format_change, format_percent, format_time
from scenarios.report.blocks import (
    Block,
    Card,
    Columns,
    Group,
    Headline,
    Lanes,
    LargePlot,
    Legend,
    Only,
    Section,
    Table,
)
from scenarios.report.charts.op_colours import op_colours
from scenarios.report.charts.op_lanes import op_lanes
from scenarios.report.charts.op_scatter import BAND, Point, in_band, scatter
from scenarios.report.pages.decision_section import decision_section
from scenarios.summaries.comparing.explanation import Explanation
from traces.comparison.compare import Comparison, Totals, difference_s
from traces.comparison.mismatch import Mismatch
from traces.comparison.step_time import StepTime
from traces.timeline import NO_INDEX

MAX_POINTS: Final = 2_000
MAX_EXAMPLES: Final = 4
"""Mismatches of each kind that are shown."""
MAX_NAME: Final = 160
"""Characters of an op's name in a table: the names of templated kernels have thousands."""

Names = tuple[str, str]
"""Names of the two timelines."""

_PARTS: Final[Sequence[tuple[str, str]]] = (
    ("compute_s", "computing"),
    ("exposed_communication_s", "communication not hidden by compute"),
    ("exposed_memory_s", "copies and fills alone"),
    ("idle_s", "idle"),
    ("overlap_s", "communication that compute hides"),
    ("communication_s", "all communication"),
)


def comparison_blocks(
    comparison: Comparison,
    *,
    names: Names,
    title: str,
    explanation: Explanation | None = None,
    notes: tuple[str, str] = ("", ""),
) -> tuple[Block, ...]:
    """Return the blocks of a comparison's page; a terminal shows ``difference_blocks`` instead.

    ``explanation``: the links that decide between two simulated steps.
    ``notes``: the reason why a side's times may be off, or empty.
    """
    blocks: tuple[Block, ...] = (
        Headline(title, _subtitle(comparison), _cards(comparison, names, notes)),
        *([decision_section(explanation)] if explanation else []),
        *comparison_sections(comparison, names),
    )
    return (Only("page", blocks),)


def comparison_sections(comparison: Comparison, names: Names) -> tuple[Block, ...]:
    """Return what a page says of a comparison below its answers: both timelines, what differs, and why."""
    lanes = op_lanes(comparison, names)
    handling = "One axis of time, from each timeline's first start. Point at an op to see its partner."
    return (
        Only("page", (
            Section("Both timelines, op by op", (Lanes(lanes),), note=lanes.note, handling=handling),
            _explained(comparison, names),
            Section("Where the step goes", (_step_tables(comparison, names),), _STEP_LEAD, _PATH_NOTE),
            *_scatter(comparison, names),
            Section("By kind", (_totals_table("kind", comparison.by_kind, names),), _TOTALS_LEAD),
            Section("By stream", (_totals_table("stream", comparison.by_stream, names),)),
            *([] if comparison.same_work else [_mismatches(comparison, names)]),
        )),
    )  # fmt: skip


_STEP_LEAD: Final = (
    "The mean rank's step. Each moment counts as compute if compute runs, else as communication, else as copies and "
    "fills."
)
_PATH_NOTE: Final = (
    "The critical path is derived from times. An op's predecessor is the op of its rank that ended last; a collective "
    "or message waits for its last rank to arrive, if the file states it. The path's parts add up to the step."
)
_TOTALS_LEAD: Final = "All ops, aligned or not; seconds are summed over ranks."


def _subtitle(comparison: Comparison) -> str:
    both, alignment = comparison.sides, comparison.alignment
    sources = f"{both.first.timeline.source} against {both.second.timeline.source}"
    aligned = [f"{int(alignment.by_name.sum()):,} ops aligned by name"]
    if not alignment.by_name.all():
        aligned.append(f"{int((~alignment.by_name).sum()):,} by kind and place")
    if len(alignment.first_alone) or len(alignment.second_alone):
        aligned.append(f"{len(alignment.first_alone):,} and {len(alignment.second_alone):,} alone")
    return f"{sources} · {', '.join(aligned)}"


def _cards(comparison: Comparison, names: Names, notes: tuple[str, str]) -> tuple[Card, ...]:
    count = sum(comparison.mismatches.values())
    work = Card("Same work", "yes", "ops, order on each stream, bytes", "good")
    if count:
        work = Card("Same work", "no", f"{count:,} difference{'s' if count > 1 else ''} in ops, order or bytes", "bad")
    return (
        Card(f"Step, {names[0]}", format_time(comparison.first_s), notes[0]),
        Card(f"Step, {names[1]}", format_time(comparison.second_s), notes[1]),
        Card("Difference", _signed(comparison.makespan_error), f"{names[0]} against {names[1]}"),
        work,
    )


def _explained(comparison: Comparison, names: Names) -> Section:
    """Return the largest contributions to the steps' difference, and the sum of all others."""
    explained = comparison.explained
    entries = sorted((*explained.ops, explained.idle), key=lambda share: share[1], reverse=True)
    rows = [_contribution(*share) for share in entries if share[0].difference_s]
    if not rows:
        return Section("What explains the difference", lead="All ops took equal times.")
    if explained.num_others:
        others, fraction = explained.others
        rows.append(_contribution(replace(others, key=f"{explained.num_others:,} others"), fraction))
    columns = ("op", "ops", *names, "difference", "of all")
    lead = (
        "Each op's exposed time in the mean rank's step. The differences add up to that of the steps, "
        f"{_difference(difference_s(comparison.first_s, comparison.second_s))}."
    )
    return Section("What explains the difference", (Table(columns, rows, breaks_words=True),), lead)


def _contribution(entry: Totals, share_fraction: float) -> tuple[str, ...]:
    times = _side_times(entry.first_s, entry.second_s)
    return _short(entry.key), _counts(entry), *times, format_percent(share_fraction)


def _counts(entry: Totals) -> str:
    """Return the number of ops of an entry on each side, or one number if they are equal."""
    if entry.num_first == entry.num_second:
        return f"{entry.num_first:,}" if entry.num_first else ""
    return f"{entry.num_first:,} | {entry.num_second:,}"


def _step_tables(comparison: Comparison, names: Names) -> Columns:
    steps, paths = comparison.step_times, comparison.critical_paths_s
    parts = [(words, *_parts(steps, key)) for key, words in _PARTS if any(getattr(step, key) for step in steps)]
    kinds = sorted({*paths[0], *paths[1]}, key=lambda kind: (-paths[1].get(kind, 0.0), -paths[0].get(kind, 0.0), kind))
    path = [(kind, *_side_times(paths[0].get(kind, 0.0), paths[1].get(kind, 0.0))) for kind in kinds]
    columns = (*names, "difference")
    tables = Table(("the mean rank", *columns), parts), Table(("the critical path", *columns), path)
    return Columns(tuple(Group((table,)) for table in tables))


def _parts(steps: tuple[StepTime, StepTime], key: str) -> tuple[str, ...]:
    return _side_times(getattr(steps[0], key), getattr(steps[1], key))


def _side_times(first_s: float, second_s: float) -> tuple[str, ...]:
    return format_time(first_s), format_time(second_s), _difference(difference_s(first_s, second_s))


def _scatter(comparison: Comparison, names: Names) -> list[Section]:
    """Return mean seconds per name of aligned ops, first over second; empty if no op is aligned."""
    colours = op_colours(comparison.sides)
    alignment, first = comparison.alignment, comparison.sides.first
    colour_of = dict(
        zip(first.name[alignment.first].tolist(), colours.of(first)[alignment.first].tolist(), strict=True)
    )
    codes = {name: code for code, name in enumerate(comparison.sides.names)}
    points = [
        Point(
            _short(entry.key), colours.legend[colour_of[codes[entry.key.split(" | ", maxsplit=1)[0]]]][1],
            entry.first_s / entry.num_first, entry.second_s / entry.num_second, by_name=entry.key in codes,
        )
        for entry in comparison.by_op if entry.first_s > 0 and entry.second_s > 0
    ]  # fmt: skip
    if not points:
        return []
    drawn = points[:MAX_POINTS]
    whole_s = sum(point.second_s for point in drawn)
    inside_s = sum(point.second_s for point in drawn if in_band([point]))
    lead = (
        f"A point per name of aligned ops, its mean over ranks and repetitions. {in_band(drawn):,} of {len(drawn):,} "
        f"lie in the band of {format_percent(BAND, 0)} more or less, with {format_percent(inside_s / whole_s)} "
        "of their seconds."
    )
    if not all(point.by_name for point in drawn):
        lead += " Rings are ops with different names on the two sides, aligned by kind and place."
    note = f"The {MAX_POINTS:,} longest of {len(points):,} are drawn." if len(points) > MAX_POINTS else ""
    heading = f"Op by op: {names[0]} against {names[1]}"
    return [Section(heading, (Legend(colours.legend), LargePlot(scatter(drawn, names))), lead, note)]


def _totals_table(words: str, totals: Sequence[Totals], names: Names) -> Table:
    rows = [
        (
            entry.key, _counts(entry), *_side_times(entry.first_s, entry.second_s),
            _signed(entry.error) if entry.error is not None else "",
        )
        for entry in totals
    ]  # fmt: skip
    return Table((words, "ops", *names, "difference", "error"), rows)


def _mismatches(comparison: Comparison, names: Names) -> Section:
    rows = [
        (example.what, f"{example.rank}", example.stream, _short(example.name),
         "" if example.microbatch == NO_INDEX else f"{example.microbatch}", _short(example.first),
         _short(example.second))
        for example in _few_of_each(comparison.examples)
    ]  # fmt: skip
    counts = ", ".join(f"{count:,} {what}" for what, count in comparison.mismatches.items() if count)
    columns = ("difference", "rank", "stream", "op", "micro-batch", *names)
    lead = f"Found: {counts}. Missing: {names[0]} alone; extra: {names[1]} alone. The first few of each:"
    table = Table(columns, rows, text_columns=len(columns), breaks_words=True)
    return Section("Not the same work", (table,), lead)


def _few_of_each(examples: Sequence[Mismatch]) -> Iterator[Mismatch]:
    """Yield the first examples of each kind of mismatch."""
    for _, alike in groupby(examples, key=lambda example: example.what):
        yield from islice(alike, MAX_EXAMPLES)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _difference(seconds: float) -> str:
    sign = "−" if seconds < 0 else "+" if seconds > 0 else ""
    return sign + format_time(abs(seconds))


def _signed(fraction: float) -> str:
    if not fraction:
        return "equal"
    return "0.0 %" if abs(fraction) <= 0.0005 else format_change(fraction).replace("-", "−")
