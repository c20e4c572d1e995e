"""The report of a simulated step in blocks: a textbook schedule, a training step, and a long run of it."""

from typing import Final

from msgspec import Struct

from costmodels.units import format_bytes, format_percent, format_rate, format_time
from scenarios.report.blocks import Bar, Block, Headline, Only, Piece, Section, Table, Text
from scenarios.report.blocks import Timeline as TimelineBlock
from scenarios.report.charts.axis_unit import SMALLEST_PEAK
from scenarios.report.charts.gantt import choose_bars
from scenarios.report.charts.op_kinds import longest_kinds
from scenarios.report.pages.advice_section import advice_lines, advice_sections
from scenarios.report.pages.experts_section import experts_section
from scenarios.report.pages.links_section import links_section
from scenarios.report.pages.long_run_section import long_run_section
from scenarios.report.pages.placement_section import placement_section
from scenarios.report.pages.role_charts import MAX_ROLES, breakdown_bars, memory_bars, memory_lines
from scenarios.report.pages.role_table import role_table
from scenarios.report.pages.step_answer import answer_cards, answer_facts, spending_section
from scenarios.summaries.steps.step import StepSummary
from sim.engine.findings.link_use import LinkUse
from traces.timeline import Timeline

_OP_COLUMNS: Final = ("kind", "part of the step", "stream", "", "per rank", "of the time", "ops per rank", "rate")

_ZOOMING: Final = "Drag to zoom, double-click for all of it."

_SEVERAL: Final = 1.5
"""Timelines longer than this number of steps show several steps."""


class FoundStep(Struct, frozen=True):
    """The result of a simulation: summary (the keys of summary.json), timeline, and use of links.

    Parts that are None are left out of the report; a terminal needs no timeline.
    """

    summary: StepSummary
    timeline: Timeline | None = None
    links: LinkUse | None = None


def textbook_blocks(found: FoundStep) -> tuple[Block, ...]:
    """Return the blocks of a textbook schedule, which has stated times and no memory."""
    return (*_opening(found), *_links(found), *_ops(found))


def training_blocks(found: FoundStep) -> tuple[Block, ...]:
    """Return the blocks of a training step."""
    return (*_opening(found), *_experts(found), *_links(found), *_memory(found), *_ops(found))


def long_run_blocks(found: FoundStep) -> tuple[Block, ...]:
    """Return the blocks of a long run: a training step repeated on hardware that fails."""
    study = found.summary.reliability
    long_run = () if study is None else (long_run_section(study),)
    return (*_opening(found), *_experts(found), *_links(found), *_memory(found), *long_run, *_ops(found))


def _experts(found: FoundStep) -> tuple[Block, ...]:
    """Return the loads of experts, where a routing is forced, and the steps in which experts move."""
    routing, placement = found.summary.routing, found.summary.placement
    loads = () if routing is None else (Only("page", (experts_section(routing),)),)
    return loads if placement is None else (*loads, placement_section(placement))


def _opening(found: FoundStep) -> tuple[Block, ...]:
    """Return the answer, the pipeline, and the parts of the time."""
    summary = found.summary
    return (
        Headline(
            summary.scenario, _subtitle(summary, found.timeline), answer_cards(summary),
            terminal_title=f"{summary.scenario}, {summary.world_size:,} ranks", facts=answer_facts(summary),
        ),
        spending_section(summary),
        *(() if summary.advice is None else advice_sections(summary.advice)),
        *_pipeline(found.timeline),
        _time(summary),
    )  # fmt: skip


def closing_block(summary: StepSummary) -> Block:
    """Return the last lines of a terminal: the advice, and the size of the simulation."""
    fold, engine = summary.fold, summary.engine
    simulated = f"simulated {fold.simulated:,} of {fold.ranks:,} ranks"
    took = f"{engine.events:,} events in {format_time(engine.wall_time_s)}"
    if engine.period_s is not None:
        took += f"; a period of {format_time(engine.period_s)} repeats {engine.repeated_periods:,} times more"
    advice = () if summary.advice is None else advice_lines(summary.advice, fits_memory=summary.fits_memory)
    return Only("terminal", (*advice, Text((Piece(f"{simulated}, {took}", "soft"),))))


def _subtitle(summary: StepSummary, timeline: Timeline | None) -> str:
    what = "one training step"
    if timeline is not None and timeline.duration_s > _SEVERAL * summary.iteration_time_s:
        what = "training steps without a flush between them; answers are for a steady one"
    source = f", {timeline.source}" if timeline is not None else ""
    words = [f"{summary.world_size:,} ranks", f"{what}{source}"]
    fold = summary.fold
    if fold.simulated < fold.ranks:
        words.append(f"{fold.simulated:,} of them simulated; the others are equal to them")
    words.append(f"seed {summary.seed}")
    return " · ".join(words)


def _pipeline(timeline: Timeline | None) -> tuple[Section, ...]:
    if timeline is None:
        return ()
    gantt = choose_bars(timeline)
    lead = "Each line is a rank: computing above, communication below it. Numbers are micro-batches."
    if any("×" in label for label in gantt.ranks):
        lead += " ×n: the rank stands for n equal ranks."
    if any(window.bars.chunk.any() for window in gantt.windows):
        lead += " Every second virtual stage of a rank is fainter."
    where = "All of it is in timeline.json.gz" if timeline.period is None else "--detail op writes all of it"
    note = f"Not drawn: {'; '.join(gantt.left_out)}. {where}." if gantt.left_out else ""
    return (Section("Pipeline", (TimelineBlock("pipeline", gantt),), lead, note, _ZOOMING),)


def _time(summary: StepSummary) -> Section:
    blocks = breakdown_bars("time", summary), Only("terminal", (role_table(summary),))
    lead = "Communication counts only while the rank computes nothing. The bubble is the remaining idle time."
    return Section("Where the time goes", blocks, lead, _some_of(len(summary.roles)))


def _links(found: FoundStep) -> tuple[Section, ...]:
    if found.links is None or not len(found.links.example):
        return ()
    return (links_section(found.links, found.summary.communication),)


def _memory(found: FoundStep) -> tuple[Section, ...]:
    """Return memory over the step, and the parts of its peak."""
    summary, timeline = found.summary, found.timeline
    if not summary.memory_capacity_bytes:
        return ()
    capacity, sections = _capacity_to_draw(summary), []
    if timeline is not None and len(timeline.memory):
        lines = memory_lines("memory", timeline, capacity)
        sections.append(
            Section("Memory over the step", (lines,), _capacity_words(summary), _some_of(len(timeline.ranks)))
        )
    if any(role.memory_by_kind_bytes for role in summary.roles):
        bars = memory_bars("memory-by-kind", summary, capacity)
        sections.append(Section("What the peak is made of", (bars,), note=_some_of(len(summary.roles))))
    return tuple(sections)


def _capacity_to_draw(summary: StepSummary) -> float | None:
    """Return the device's capacity, None if it is unknown or much larger than the peak."""
    capacity = summary.memory_capacity_bytes
    peak = max(role.peak_memory_bytes for role in summary.roles)
    return float(capacity) if capacity and peak > SMALLEST_PEAK * capacity else None


def _capacity_words(summary: StepSummary) -> str:
    capacity = summary.memory_capacity_bytes
    if not capacity or _capacity_to_draw(summary):
        return ""
    return f"The device's capacity, {format_bytes(capacity)}, is far above the picture."


def _some_of(number: int) -> str:
    return f"{MAX_ROLES} of {number} roles are drawn." if number > MAX_ROLES else ""


def _ops(found: FoundStep) -> tuple[Section, ...]:
    timeline = found.timeline
    if timeline is None:
        return ()
    kinds = [kind for kind in longest_kinds(timeline) if kind.time_s > 0]
    total_s = timeline.duration_s
    longest_s = max((kind.time_s for kind in kinds), default=0.0)
    rows = [
        (
            kind.name, kind.phase, kind.stream, Bar(kind.time_s / longest_s), format_time(kind.time_s),
            format_percent(kind.time_s / total_s), f"{kind.num_ops:,.4g}",
            format_rate(kind.flop / kind.time_s, "FLOP/s") if kind.flop else "",
        )
        for kind in kinds
    ]  # fmt: skip
    lead = "Ops that differ only in layer and micro-batch, the mean over all ranks. Streams overlap."
    heading = "Longest kinds of op" if timeline.detail == "op" else "Longest kinds of task"
    if timeline.detail == "task":
        lead = (
            "Tasks are lists of ops. Those that differ only in micro-batch, the mean over all ranks. Streams overlap."
        )
    columns = _OP_COLUMNS if any(row[-1] for row in rows) else _OP_COLUMNS[:-1]
    table = Table(columns, [row[: len(columns)] for row in rows], text_columns=4)
    return (Section(heading, (Only("page", (table,)),), lead),)
