"""The page of two timelines side by side: how far apart, both pipelines under each other, op by op."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.units import format_time
from scenarios.report.charts import gantt_chart, gantt_legend, scatter_chart
from scenarios.report.decision import decision_section
from scenarios.report.gantt import choose_bars
from scenarios.report.page import Card, Section, legend, table, write_page
from traces.compare import Comparison, Totals, compare
from traces.timeline import NO_INDEX, Timeline

MAX_POINTS: Final = 2_000

Names = tuple[str, str]
"""What the two timelines are called."""


def write_comparison(
    simulated: Timeline, real: Timeline, path: Path, *, title: str, explanation: Mapping[str, Any] | None = None
) -> None:
    """Write the page of two timelines of one plan: both pipelines, and how they differ.

    ``explanation``: what decides between two simulated steps (see ``scenarios.explanation``).

    Raises TraceError where they cannot be compared.
    """
    comparison = compare(simulated, real)
    names = ("first", "second") if simulated.source == real.source else (simulated.source, real.source)
    names = (explanation["first"], explanation["second"]) if explanation else names
    longest_s = max(simulated.duration_s, real.duration_s)
    sections = [
        _pipeline(f"Pipeline, {names[0]}", "first", simulated, longest_s),
        _pipeline(f"Pipeline, {names[1]}", "second", real, longest_s),
        _scatter(comparison, simulated, names),
        _explained(comparison, names),
        Section("By kind and by stream", "", _two_tables(comparison, names)),
    ]
    if explanation:
        sections.insert(0, decision_section(explanation))
    if not comparison.same_work:
        sections.insert(0, _mismatches(comparison, names))
    ops = f"{len(comparison.real_rows):,} ops in both"
    subtitle = f"{simulated.source} against {real.source} · {ops}"
    write_page(path, title, subtitle, _cards(comparison, names), sections)


def _cards(comparison: Comparison, names: Names) -> list[Card]:
    count = sum(comparison.mismatches.values())
    work = Card("Same work", "yes", "ops, order on each stream, bytes", "good")
    if count:
        work = Card("Same work", "no", f"{count:,} difference{'s' if count > 1 else ''} in ops, order or bytes", "bad")
    return [
        Card(f"Step, {names[0]}", format_time(comparison.simulated_s)),
        Card(f"Step, {names[1]}", format_time(comparison.real_s)),
        Card("Difference", _signed(comparison.makespan_error), f"{names[0]} against {names[1]}"),
        work,
    ]


def _pipeline(heading: str, chart_id: str, timeline: Timeline, longest_s: float) -> Section:
    gantt = choose_bars(timeline)
    note = f"Not drawn: {'; '.join(gantt.left_out)}." if gantt.left_out else ""
    return Section(heading, "", legend(gantt_legend(gantt)), gantt_chart(chart_id, gantt, longest_s), note)


def _scatter(comparison: Comparison, simulated: Timeline, names: Names) -> Section:
    """Return mean seconds per op name, first over second."""
    kind_of = dict(
        zip(simulated.name.codes[comparison.simulated_rows].tolist(),
            simulated.kind.codes[comparison.simulated_rows].tolist(), strict=True)
    )  # fmt: skip
    codes = {name: code for code, name in enumerate(simulated.name.values)}
    points = [
        (entry.key, simulated.kind.values[kind_of[codes[entry.key]]], entry.real_s / entry.num_ops,
         entry.simulated_s / entry.num_ops)
        for entry in comparison.by_op if entry.real_s > 0 and entry.simulated_s > 0
    ]  # fmt: skip
    lead = "A point per op name, its mean over ranks and micro-batches. Dotted: 10 % more or less."
    note = f"The {MAX_POINTS:,} longest of {len(points):,} are drawn." if len(points) > MAX_POINTS else ""
    return Section(
        f"{names[0].capitalize()} against {names[1]}",
        lead,
        "",
        scatter_chart("scatter", points[:MAX_POINTS], names),
        note,
    )


def _explained(comparison: Comparison, names: Names) -> Section:
    rows = [(entry.totals.key, *_numbers(entry.totals), f"{100 * entry.share:.1f} %") for entry in comparison.largest]
    body = table(("op", "ops", *names, "difference", "error", "share of all differences"), rows)
    lead = "Seconds are summed over ranks and micro-batches; the share is of the sum of absolute differences."
    if not rows:
        return Section("What explains the difference", "No op took another time.")
    return Section("What explains the difference", lead, body)


def _two_tables(comparison: Comparison, names: Names) -> str:
    return '<div class="columns">' + "".join(
        f"<div>{_totals_table(words, totals, names)}</div>"
        for words, totals in (("kind", comparison.by_kind), ("stream", comparison.by_stream))
    ) + "</div>"  # fmt: skip


def _totals_table(words: str, totals: Sequence[Totals], names: Names) -> str:
    rows = [(entry.key, *_numbers(entry)) for entry in totals]
    return table((words, "ops", *names, "difference", "error"), rows)


def _numbers(entry: Totals) -> tuple[str, ...]:
    error = _signed(entry.error) if entry.error is not None else ""
    difference = format_time(abs(entry.difference_s))
    sign = "−" if entry.difference_s < 0 else "+" if entry.difference_s > 0 else ""
    return f"{entry.num_ops:,}", format_time(entry.simulated_s), format_time(entry.real_s), sign + difference, error


def _mismatches(comparison: Comparison, names: Names) -> Section:
    rows = [
        (example.what, f"{example.rank}", example.stream, example.name,
         "" if example.microbatch == NO_INDEX else f"{example.microbatch}", example.simulated, example.real)
        for example in comparison.examples
    ]  # fmt: skip
    counts = ", ".join(f"{count:,} {what}" for what, count in comparison.mismatches.items() if count)
    columns = ("difference", "rank", "stream", "op", "micro-batch", *names)
    lead = f"Found: {counts}. Missing: {names[0]} alone; extra: {names[1]} alone. The first few of each:"
    return Section("Not the same work", lead, table(columns, rows, text_columns=len(columns)))


def _signed(fraction: float) -> str:
    percent = 100 * fraction
    return "0.0 %" if np.isclose(percent, 0.0, atol=0.05) else f"{percent:+.1f} %".replace("-", "−")
