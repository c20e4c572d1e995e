"""A profile of the PyTorch profiler in figures: its summary, and a terminal's tables of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_bytes, format_percent, format_rate, format_time
from scenarios.summaries.recorded.recording_warning import warnings_of
from scenarios.summaries.recorded.trace import AlignedClocks, RecordedCollective, RecordedRank, TraceSummary
from traces.kineto.breakdown import break_down
from traces.kineto.statistics import CollectiveRate, KernelTotal, collective_rates, longest_kernels
from traces.kineto.trace import KinetoTrace

MAX_KERNELS: Final = 10
MAX_ROWS: Final = 16
_MAX_NAME: Final = 60


def summarise(path: Path, steps: str, trace: KinetoTrace) -> TraceSummary:
    """Return all figures of a profile; seconds and bytes, None where the trace does not say."""
    ranks = tuple(_rank(trace, position) for position in range(len(trace.ranks)))
    shifts_s = trace.alignment.shift_s.tolist()
    pairs = list(zip(trace.ranks, shifts_s, strict=True))
    first_s = min(float(rank.rows.start_s.min()) + shift_s for rank, shift_s in pairs)
    last_s = max(float(rank.rows.end_s.max()) + shift_s for rank, shift_s in pairs)
    return TraceSummary(
        path=str(path),
        num_ranks=len(trace.ranks),
        world_size=max(rank.world_size for rank in trace.ranks) or None,
        num_events=sum(rank.num_events for rank in trace.ranks),
        num_activities=sum(len(rank.rows) for rank in trace.ranks),
        recorded_steps=tuple(sorted({step.number for rank in trace.ranks for step in rank.steps})),
        steps=steps,
        span_s=last_s - first_s,
        ranks=ranks,
        kernels=longest_kernels(trace.ranks, MAX_KERNELS),
        collectives=tuple(_collective(rate) for rate in collective_rates(trace)),
        clock=AlignedClocks(
            num_collectives=trace.alignment.num_collectives,
            worst_residual_s=max(rank.worst_residual_s or 0.0 for rank in ranks) if len(ranks) > 1 else None,
            unaligned_ranks=tuple(trace.ranks[rank].rank for rank in trace.alignment.unaligned),
        ),
        warnings=warnings_of(trace.warnings),
    )


def _rank(trace: KinetoTrace, position: int) -> RecordedRank:
    """Return the figures of one rank."""
    rank, clock = trace.ranks[position], trace.alignment
    parts = break_down(rank.rows)
    held = rank.allocated[1]
    return RecordedRank(
        rank=rank.rank,
        file=rank.file,
        num_streams=len({*rank.rows.stream.codes.tolist()}),
        num_activities=len(rank.rows),
        span_s=parts.span_s,
        compute_s=parts.compute_s,
        communication_s=parts.communication_s,
        memory_s=parts.memory_s,
        idle_s=parts.idle_s,
        overlap_s=parts.overlap_s,
        non_compute_s=parts.non_compute_s,
        exposed_communication_s=parts.exposed_communication_s,
        overlap_fraction=parts.overlap_fraction,
        peak_allocated_bytes=int(held.max()) if len(held) else None,
        clock_offset_s=float(clock.offset_s[position]),
        clock_drift_ppm=1e6 * float(clock.drift[position]),
        residual_s=_finite(clock.residual_s[position]),
        worst_residual_s=_finite(clock.worst_residual_s[position]),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _collective(rate: CollectiveRate) -> RecordedCollective:
    return RecordedCollective(
        kind=rate.kind,
        group=rate.group,
        num_ranks=rate.num_ranks or None,
        num_seen=rate.num_seen,
        dtype=rate.dtype,
        bytes=rate.num_bytes if rate.num_bytes >= 0 else None,
        count=rate.count,
        time_s=rate.time_s,
        algorithm_bandwidth_bytes_per_s=rate.algorithm_bandwidth_bytes_per_s,
        bus_bandwidth_bytes_per_s=rate.bus_bandwidth_bytes_per_s,
    )


def print_trace(summary: TraceSummary, console: Console, out: Path | None = None) -> None:
    """Print a profile's figures for people."""
    shown = f"{summary.num_ranks:,} rank{'s' if len(summary.ranks) != 1 else ''}"
    console.print(Text(f"{summary.path}, {shown}", style="bold"), soft_wrap=True)
    console.print(_answer(summary))
    for table in (_rank_table(summary.ranks), _kernel_table(summary.kernels), _collective_table(summary.collectives)):
        if table.row_count:
            console.print()
            console.print(table)
    if out is not None:
        console.print()
        console.print(Text(f"written to {out}"), soft_wrap=True)


def _answer(summary: TraceSummary) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("span", Text(format_time(summary.span_s), style="bold"))
    steps = summary.recorded_steps
    recorded = f"{steps[0]} to {steps[-1]} recorded" if steps else "none recorded"
    grid.add_row("steps", f"{summary.steps} ({recorded})")
    grid.add_row("activities", f"{summary.num_activities:,} on devices, of {summary.num_events:,} events")
    clock = summary.clock
    if clock.worst_residual_s is not None:
        moved = max(abs(rank.clock_offset_s) for rank in summary.ranks)
        within = format_time(clock.worst_residual_s)
        used = f"on {clock.num_collectives:,} collectives, which then end within {within}"
        drift = max(abs(rank.clock_drift_ppm) for rank in summary.ranks)
        freed = f", freed of up to {drift:.3g} ppm of drift," if drift else ""
        grid.add_row("clocks", f"moved by at most {format_time(moved)}{freed} {used}")
    return grid


def _table(first: str, *others: str) -> Table:
    table = Table(first, *others, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _rank_table(ranks: Sequence[RecordedRank]) -> Table:
    table = _table("rank", "span", "compute", "communication", "of it hidden", "memory", "idle", "peak allocated")
    for rank in ranks[:MAX_ROWS]:
        parts = (_part(part_s, rank.span_s) for part_s in (rank.compute_s, rank.communication_s))
        others = (_part(part_s, rank.span_s) for part_s in (rank.memory_s, rank.idle_s))
        hidden, held = rank.overlap_fraction, rank.peak_allocated_bytes
        table.add_row(
            str(rank.rank), format_time(rank.span_s), *parts, "-" if hidden is None else format_percent(hidden),
            *others, "-" if held is None else format_bytes(held),
        )  # fmt: skip
    return _captioned(table, len(ranks), "ranks")


def _part(part_s: float, whole_s: float) -> str:
    return f"{format_time(part_s)} ({format_percent(part_s / whole_s)})" if whole_s else format_time(part_s)


def _kernel_table(kernels: Sequence[KernelTotal]) -> Table:
    table = _table("longest on all devices", "kind", "count", "time", "of all")
    for kernel in kernels:
        name = kernel.name if len(kernel.name) <= _MAX_NAME else kernel.name[: _MAX_NAME - 3] + "..."
        share = format_percent(kernel.fraction)
        table.add_row(Text(name), kernel.kind, f"{kernel.count:,}", format_time(kernel.total_s), share)
    return table


def _collective_table(rates: Sequence[RecordedCollective]) -> Table:
    table = _table("collective", "ranks", "type", "size", "count", "time", "bus bandwidth")
    for rate in rates[:MAX_ROWS]:
        bandwidth, size = rate.bus_bandwidth_bytes_per_s, rate.bytes
        bound = "" if rate.num_seen == rate.num_ranks else "at least "
        seen = f"{rate.num_seen} of {rate.num_ranks or '?'}"
        table.add_row(
            Text(f"{rate.kind} {rate.group}".strip()), seen, rate.dtype or "-",
            "-" if size is None else format_bytes(size), f"{rate.count:,}", format_time(rate.time_s),
            "-" if bandwidth is None else bound + format_rate(bandwidth, "B/s"),
        )  # fmt: skip
    return _captioned(table, len(rates), "kinds of collectives")


def _captioned(table: Table, total: int, words: str) -> Table:
    if total > MAX_ROWS:
        table.caption, table.caption_justify = f"{MAX_ROWS} of {total} {words}; all with --json", "left"
    return table
