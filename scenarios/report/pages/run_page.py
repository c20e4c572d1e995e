"""report.html of a simulated or executed step: the answer, the pipeline, where the time goes, the memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from costmodels.units import format_bytes, format_percent, format_rate, format_time
from scenarios.report.charts.gantt import choose_bars
from scenarios.report.charts.op_kinds import longest_kinds
from scenarios.report.charts.step_charts import (
    MAX_ROLES,
    breakdown_chart,
    gantt_chart,
    gantt_legend,
    legend_of,
    memory_by_kind_chart,
    memory_curve_chart,
)
from scenarios.report.pages.links_section import links_section
from scenarios.report.pages.long_run_section import long_run_section
from scenarios.report.pages.step_answer import answer_cards, answer_section
from scenarios.report.rendering.markup import escape
from scenarios.report.rendering.page import Section, bar, legend, table, write_page
from scenarios.report.words import Advice
from sim.engine.findings.link_use import LinkUse
from traces.timeline import Timeline

SMALLEST_PEAK: Final = 0.15
"""Peaks of a smaller fraction of the capacity are drawn without it."""

_OP_COLUMNS: Final = ("kind", "part of the step", "stream", "", "per rank", "of the time", "ops per rank", "rate")

_SEVERAL: Final = 1.5
"""A longer timeline than so many steps shows several of them."""


def write_report(
    summary: Mapping[str, Any],
    timeline: Timeline,
    path: Path,
    *,
    links: LinkUse | None = None,
    advice: Advice | None = None,
) -> None:
    """Write the page of one step from its summary (the keys of summary.json), timeline, use of links, and advice.

    Wall times are left out: identical runs give identical bytes.
    """
    sections = [answer_section(summary, advice), _pipeline(timeline), _time(summary)]
    if links is not None and len(links.example):
        sections.append(links_section(links, summary["communication"]))
    has_memory = bool(summary.get("memory_capacity_bytes"))  # a textbook workload models none
    if has_memory and len(timeline.memory):
        sections.append(_memory(summary, timeline))
    if has_memory and any(role["memory_by_kind_bytes"] for role in summary["roles"]):
        sections.append(_memory_by_kind(summary))
    if "reliability" in summary:
        sections.append(long_run_section(summary["reliability"]))
    sections.append(_ops(timeline))
    write_page(path, summary["scenario"], _subtitle(summary, timeline), answer_cards(summary), sections)


def _subtitle(summary: Mapping[str, Any], timeline: Timeline) -> str:
    what = "one training step"
    if timeline.duration_s > _SEVERAL * summary["iteration_time_s"]:
        what = "training steps without a flush between them, answers for a steady one"
    words = [f"{summary['world_size']:,} ranks", f"{what}, {timeline.source}"]
    fold = summary.get("fold")
    if fold and fold["simulated"] < fold["ranks"]:
        words.append(f"{fold['simulated']:,} of them simulated, the others are their equals")
    if "seed" in summary:
        words.append(f"seed {summary['seed']}")
    return " · ".join(words)


def _pipeline(timeline: Timeline) -> Section:
    gantt = choose_bars(timeline)
    lead = "Each line is a rank: computing above, communication below it. Numbers are micro-batches. "
    lead += "Drag to zoom, double-click for all of it."
    if any("×" in label for label in gantt.ranks):
        lead += " ×n: the rank stands for n that are alike."
    if any(window.bars.chunk.any() for window in gantt.windows):
        lead += " Every second virtual stage of a rank is fainter."
    note = f"Not drawn: {'; '.join(gantt.left_out)}. All of it is in timeline.json.gz." if gantt.left_out else ""
    return Section("Pipeline", lead, legend(gantt_legend(gantt)), gantt_chart("pipeline", gantt), note)


def _time(summary: Mapping[str, Any]) -> Section:
    chart = breakdown_chart("time", summary)
    lead = "Communication counts only while the rank computes nothing; the bubble is what nothing explains but order."
    return Section("Where the time goes", lead, legend(legend_of(chart)), chart, _some_of(len(summary["roles"])))


def _memory(summary: Mapping[str, Any], timeline: Timeline) -> Section:
    chart = memory_curve_chart("memory", timeline, _capacity_to_draw(summary))
    return Section("Memory over the step", _capacity_words(summary), "", chart, _some_of(len(timeline.ranks)))


def _memory_by_kind(summary: Mapping[str, Any]) -> Section:
    chart = memory_by_kind_chart("memory-by-kind", summary, _capacity_to_draw(summary))
    return Section("What the peak is made of", "", legend(legend_of(chart)), chart, _some_of(len(summary["roles"])))


def _capacity_to_draw(summary: Mapping[str, Any]) -> float | None:
    """Return the device's capacity, None where there is none or the peak would be too small to see beside it."""
    capacity = summary.get("memory_capacity_bytes")
    peak = max(role["peak_memory_bytes"] for role in summary["roles"])
    return float(capacity) if capacity and peak > SMALLEST_PEAK * capacity else None


def _capacity_words(summary: Mapping[str, Any]) -> str:
    capacity = summary.get("memory_capacity_bytes")
    if not capacity or _capacity_to_draw(summary):
        return ""
    return f"The device's capacity, {format_bytes(capacity)}, is far above the picture."


def _some_of(number: int) -> str:
    return f"{MAX_ROLES} of {number} roles are drawn." if number > MAX_ROLES else ""


def _ops(timeline: Timeline) -> Section:
    kinds = [kind for kind in longest_kinds(timeline) if kind.time_s > 0]
    total_s = timeline.duration_s
    longest_s = max((kind.time_s for kind in kinds), default=0.0)
    rows = [
        (
            *(escape(words) for words in (kind.name, kind.phase, kind.stream)),
            bar(kind.time_s / longest_s),
            format_time(kind.time_s),
            format_percent(kind.time_s / total_s),
            f"{kind.num_ops:,.4g}",
            format_rate(kind.flop / kind.time_s, "FLOP/s") if kind.flop else "",
        )
        for kind in kinds
    ]
    lead = "Ops that are alike up to layer and micro-batch, the mean over all ranks. Streams overlap."
    heading = "Longest kinds of op" if timeline.detail == "op" else "Longest kinds of task"
    if timeline.detail == "task":
        lead = "Tasks are lists of ops; those alike up to micro-batch, the mean over all ranks. Streams overlap."
    columns = _OP_COLUMNS if any(row[-1] for row in rows) else _OP_COLUMNS[:-1]
    return Section(heading, lead, table(columns, [row[: len(columns)] for row in rows], text_columns=4, is_html=True))
