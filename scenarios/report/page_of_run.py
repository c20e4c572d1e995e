"""report.html of a simulated or executed step: the answer, the pipeline, where the time goes, the memory."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from costmodels.units import format_bytes, format_rate, format_time
from scenarios.report.charts import (
    MAX_ROLES,
    breakdown_chart,
    gantt_chart,
    gantt_legend,
    legend_of,
    memory_by_kind_chart,
    memory_curve_chart,
)
from scenarios.report.gantt import choose_bars
from scenarios.report.links import links_section
from scenarios.report.long_run import long_run_card, long_run_section
from scenarios.report.op_kinds import OpKind, longest_kinds
from scenarios.report.page import Card, Section, legend, write_page
from scenarios.role_names import fullest_row, row_name
from sim.engine.link_use import LinkUse
from traces.timeline import Timeline

SMALLEST_PEAK: Final = 0.15
"""Peaks of a smaller fraction of the capacity are drawn without it."""

_OP_COLUMNS: Final = (
    ("kind", ""), ("part of the step", ""), ("stream", ""), ("", ""), ("per rank", "n"), ("of the step", "n"),
    ("ops per rank", "n"), ("rate", "n"),
)  # fmt: skip


def write_report(
    summary: Mapping[str, Any], timeline: Timeline, path: Path, *, title: str, links: LinkUse | None = None
) -> None:
    """Write the page of one step from its summary (the keys of summary.json), timeline and use of links.

    Wall times are left out: identical runs give identical bytes.
    """
    sections = [_pipeline(timeline), _time(summary)]
    if links is not None and len(links.example):
        sections.append(links_section(links, summary["communication"]))
    has_memory = bool(summary.get("memory_capacity_bytes"))  # a textbook workload models none
    if has_memory and len(timeline.memory):
        sections.append(_memory(summary, timeline))
    if has_memory and any(role["memory_by_kind_bytes"] for role in summary["roles"]):
        sections.append(_memory_by_kind(summary))
    if "reliability" in summary:
        sections.append(long_run_section(summary["reliability"]))
    sections.append(_ops(summary, timeline))
    write_page(path, title, _subtitle(summary, timeline), _cards(summary), sections)


def _subtitle(summary: Mapping[str, Any], timeline: Timeline) -> str:
    words = [f"{summary['world_size']:,} ranks", f"one training step, {timeline.source}"]
    fold = summary.get("fold")
    if fold and fold["simulated"] < fold["ranks"]:
        words.append(f"{fold['simulated']:,} of them simulated, the others are their equals")
    if "seed" in summary:
        words.append(f"seed {summary['seed']}")
    return " · ".join(words)


def _cards(summary: Mapping[str, Any]) -> list[Card]:
    cards = [Card("Time per step", format_time(summary["iteration_time_s"]), _losses(summary))]
    if summary.get("tokens_per_s"):
        cards.append(Card("Throughput", _tokens(summary["tokens_per_s"])))
    if summary.get("model_flop_per_s_per_device"):
        rate = format_rate(summary["model_flop_per_s_per_device"], "FLOP/s")
        hardware = f"{rate} per device, HFU {_percent(summary['hfu'])}"
        cards.append(Card("Model FLOP utilisation (MFU)", _percent(summary["mfu"]), hardware))
    memory = _memory_card(summary)
    if memory:
        cards.append(memory)
    if "reliability" in summary:
        cards.append(long_run_card(summary["reliability"]))
    return cards


def _losses(summary: Mapping[str, Any]) -> str:
    bubble, exposed = summary["bubble_fraction"], summary["exposed_communication_fraction"]
    return f"{_percent(bubble)} bubble, {_percent(exposed)} exposed communication"


def _memory_card(summary: Mapping[str, Any]) -> Card | None:
    """Return the fullest role's peak against capacity, None for textbook jobs that hold nothing."""
    fullest, capacity = fullest_row(summary)
    peak = fullest["peak_memory_bytes"]
    if not peak or not capacity:
        return None
    fits = summary.get("fits_memory")
    verdict = "" if fits is None else "fits" if fits else "does not fit"
    where = row_name(summary["roles"], fullest, "every rank")
    detail = f"of {format_bytes(capacity)} on {where}{f': {verdict}' if verdict else ''}"
    return Card("Peak memory", format_bytes(peak), detail, "" if fits is None else "good" if fits else "bad")


def _pipeline(timeline: Timeline) -> Section:
    gantt = choose_bars(timeline)
    lead = "Each line is a rank: computing above, communication below it. Numbers are micro-batches. "
    lead += "Drag to zoom, double-click for all of it."
    if any("×" in label for label in gantt.ranks):
        lead += " ×n: the rank stands for n that are alike."
    if any(window.bars.chunk.any() for window in gantt.windows):
        lead += " Every second virtual stage of a rank is paler."
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


def _ops(summary: Mapping[str, Any], timeline: Timeline) -> Section:
    kinds = longest_kinds(timeline)
    total_s = summary["iteration_time_s"]
    longest_s = max((kind.time_s for kind in kinds), default=0.0)
    lines = "".join(_op_line(kind, total_s, longest_s) for kind in kinds)
    heads = "".join(f'<th class="{align}">{words}</th>' for words, align in _OP_COLUMNS)
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    lead = "Ops that are alike up to layer and micro-batch, the mean over all ranks. Streams overlap."
    heading = "Longest kinds of op" if timeline.detail == "op" else "Longest kinds of task"
    if timeline.detail == "task":
        lead = "Tasks are lists of ops; those alike up to micro-batch, the mean over all ranks. Streams overlap."
    return Section(heading, lead, body)


def _op_line(kind: OpKind, total_s: float, longest_s: float) -> str:
    width = round(100 * kind.time_s / longest_s, 1) if longest_s else 0
    rate = format_rate(kind.flop / kind.time_s, "FLOP/s") if kind.flop and kind.time_s else ""
    cells = "".join(f"<td>{escape(words)}</td>" for words in (kind.name, kind.phase, kind.stream))
    numbers = (format_time(kind.time_s), _percent(kind.time_s / total_s), f"{kind.num_ops:,.4g}", rate)
    aligned = "".join(f'<td class="n">{escape(number)}</td>' for number in numbers)
    bar = f'<td style="width:22%"><span class="bar" style="width:{width}%"></span></td>'
    return f"<tr>{cells}{bar}{aligned}</tr>"


def _tokens(rate_per_s: float) -> str:
    return f"{rate_per_s:,.0f} tokens/s" if rate_per_s >= 100 else f"{rate_per_s:.3g} tokens/s"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
