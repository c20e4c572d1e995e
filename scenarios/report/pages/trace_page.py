"""The report of a recording: where the time of its ranks goes, its longest kernels, its collectives, and its ops."""

from collections.abc import Sequence
from typing import Final

from costmodels.units import format_bytes, format_percent, format_rate, format_time
from scenarios.report.blocks import (
    Bars,
    Block,
    Card,
    Column,
    Fact,
    Headline,
    Lanes,
    Line,
    Only,
    Piece,
    Section,
    Table,
)
from scenarios.report.charts.op_lanes import timeline_lanes
from scenarios.report.pages.recorded_parts import (
    TimeParts,
    part_in_words,
    ranks_in_words,
    time_bars,
    warning_sections,
)
from scenarios.summaries.recorded.trace import RecordedCollective, RecordedRank, TraceSummary
from traces.kineto.statistics import KernelTotal
from traces.timeline import Timeline

MAX_ROWS: Final = 16
"""Ranks, and kinds of collectives, that are listed and drawn."""
ZOOMING: Final = "Point at an op to see its name and its time."


def trace_blocks(summary: TraceSummary, timeline: Timeline | None = None) -> tuple[Block, ...]:
    """Return the report of a recording; ``timeline``: None for a terminal, which draws none."""
    return (
        Headline(summary.path, _subtitle(summary), _cards(summary), _title(summary), _facts(summary)),
        Section("Where the time goes", (Only("page", (_time_bars(summary.ranks),)), _rank_table(summary.ranks))),
        *([] if timeline is None else [_timeline_section(timeline)]),
        *([Section("Longest on all devices", (_kernel_table(summary.kernels),))] if summary.kernels else []),
        *([Section("Collectives", (_collective_table(summary.collectives),))] if summary.collectives else []),
        *warning_sections([warning.text for warning in summary.warnings]),
    )


def _timeline_section(timeline: Timeline) -> Section:
    """Return the drawing of all ops of a recording."""
    lanes = timeline_lanes(timeline)
    return Section("Op by op", (Lanes(lanes),), note=lanes.note, handling=ZOOMING)


def _title(summary: TraceSummary) -> str:
    return f"{summary.path}, {ranks_in_words(summary.num_ranks)}"


def _subtitle(summary: TraceSummary) -> str:
    size = summary.world_size
    of_all = "" if size in {None, summary.num_ranks} else f" of a job with {size:,}"
    return f"{ranks_in_words(summary.num_ranks)}{of_all} · recorded by a profiler"


def _cards(summary: TraceSummary) -> tuple[Card, ...]:
    """Return the span, and the mean rank's parts of it."""
    count = len(summary.ranks)
    span_s = sum(rank.span_s for rank in summary.ranks) / count
    computing_s = sum(rank.compute_s for rank in summary.ranks) / count
    exposed_s = sum(rank.exposed_communication_s for rank in summary.ranks) / count
    idle_s = sum(rank.idle_s for rank in summary.ranks) / count
    peaks = [rank.peak_allocated_bytes for rank in summary.ranks if rank.peak_allocated_bytes is not None]
    return (
        Card("Span", format_time(summary.span_s), f"steps: {_steps(summary)}"),
        Card("Computing", format_percent(computing_s / span_s) if span_s else "-", format_time(computing_s)),
        Card("Exposed communication", format_percent(exposed_s / span_s) if span_s else "-", format_time(exposed_s)),
        Card("Idle", format_percent(idle_s / span_s) if span_s else "-", format_time(idle_s)),
        *([Card("Peak allocated", format_bytes(max(peaks)), "on the fullest rank")] if peaks else []),
    )


def _facts(summary: TraceSummary) -> tuple[Fact, ...]:
    facts = [
        Fact("span", (Piece(format_time(summary.span_s), "strong"),)),
        Fact("steps", _steps(summary)),
        Fact("activities", f"{summary.num_activities:,} on devices, of {summary.num_events:,} events"),
    ]
    clock = summary.clock
    if clock.worst_residual_s is not None:
        moved = max(abs(rank.clock_offset_s) for rank in summary.ranks)
        within = format_time(clock.worst_residual_s)
        used = f"on {clock.num_collectives:,} collectives, which then end within {within}"
        drift = max(abs(rank.clock_drift_ppm) for rank in summary.ranks)
        freed = f", freed of up to {drift:.3g} ppm of drift," if drift else ""
        facts.append(Fact("clocks", f"moved by at most {format_time(moved)}{freed} {used}"))
    return tuple(facts)


def _steps(summary: TraceSummary) -> str:
    steps = summary.recorded_steps
    if not steps:
        return f"{summary.steps} (none recorded)"
    return f"{summary.steps} ({steps[0]} to {steps[-1]} recorded)" if len(steps) > 1 else f"{steps[0]}"


def _time_bars(ranks: Sequence[RecordedRank]) -> Bars:
    shown = ranks[:MAX_ROWS]
    parts = [
        TimeParts(
            compute_s=rank.compute_s,
            exposed_communication_s=rank.exposed_communication_s,
            exposed_memory_s=max(0.0, rank.non_compute_s - rank.exposed_communication_s),
            idle_s=rank.idle_s,
        )
        for rank in shown
    ]
    return time_bars("time", [f"rank {rank.rank}" for rank in shown], parts)


def _rank_table(ranks: Sequence[RecordedRank]) -> Table:
    columns = ("rank", "span", "compute", "communication", "of it hidden", "memory", "idle", "peak allocated")
    rows = []
    for rank in ranks[:MAX_ROWS]:
        hidden, held = rank.overlap_fraction, rank.peak_allocated_bytes
        rows.append((
            f"{rank.rank}", format_time(rank.span_s), part_in_words(rank.compute_s, rank.span_s),
            part_in_words(rank.communication_s, rank.span_s), "-" if hidden is None else format_percent(hidden),
            part_in_words(rank.memory_s, rank.span_s), part_in_words(rank.idle_s, rank.span_s),
            "-" if held is None else format_bytes(held),
        ))  # fmt: skip
    return Table(columns, rows, caption=_caption(len(ranks), "ranks"))


def _kernel_table(kernels: Sequence[KernelTotal]) -> Table:
    columns = (
        Column("longest on all devices", is_number=False, overflow="cut"), Column("kind", is_number=False),
        "count", "time", "of all",
    )  # fmt: skip
    rows: list[tuple[Line, ...]] = [
        (kernel.name, kernel.kind, f"{kernel.count:,}", format_time(kernel.total_s), format_percent(kernel.fraction))
        for kernel in kernels
    ]
    return Table(columns, rows, breaks_words=True)


def _collective_table(rates: Sequence[RecordedCollective]) -> Table:
    columns = ("collective", "ranks", "type", "size", "count", "time", "bus bandwidth")
    rows = []
    for rate in rates[:MAX_ROWS]:
        bandwidth, size = rate.bus_bandwidth_bytes_per_s, rate.bytes
        bound = "" if rate.num_seen == rate.num_ranks else "at least "
        rows.append((
            f"{rate.kind} {rate.group}".strip(), f"{rate.num_seen} of {rate.num_ranks or '?'}", rate.dtype or "-",
            "-" if size is None else format_bytes(size), f"{rate.count:,}", format_time(rate.time_s),
            "-" if bandwidth is None else bound + format_rate(bandwidth, "B/s"),
        ))  # fmt: skip
    return Table(columns, rows, caption=_caption(len(rates), "kinds of collectives"))


def _caption(total: int, words: str) -> str:
    return f"{MAX_ROWS} of {total} {words}; all with --json" if total > MAX_ROWS else ""
