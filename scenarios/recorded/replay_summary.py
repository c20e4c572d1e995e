"""A replayed recording in figures: its summary, and a terminal's tables of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_change, format_time
from scenarios.summaries.recorded.recording_warning import warnings_of
from scenarios.summaries.recorded.replay import RankParts, ReplayedRank, ReplaySummary
from sim.replay.changes import Changes, as_mapping
from sim.replay.run import Replay, Replayer
from traces.chakra.node import ChakraTrace
from traces.comparison.compare import difference_s
from traces.doubt import Doubt
from traces.kineto.breakdown import Breakdown, break_down
from traces.kineto.doubts import job_size
from traces.timeline import Timeline

REPRODUCED_WITHIN: Final = 0.03
"""What an unchanged replay may be off by before its figures are doubtful."""
_PARTS: Final[Sequence[tuple[str, Callable[[RankParts], float]]]] = (
    ("compute", lambda parts: parts.compute_s),
    ("exposed communication", lambda parts: parts.exposed_communication_s),
    ("memory", lambda parts: parts.memory_s),
    ("idle", lambda parts: parts.idle_s),
    ("span of a rank", lambda parts: parts.span_s),
)
"""The rows of the table, each with its seconds of a rank."""


def summarise(path: Path, replayer: Replayer, runs: tuple[Replay, Replay], changes: Changes) -> ReplaySummary:
    """Return all figures of a replay in seconds; ``runs``: unchanged, which should be as measured, and with changes."""
    measured, (unchanged, replay) = replayer.trace, runs
    return ReplaySummary(
        path=str(path),
        num_ranks=len(measured.ranks),
        changes=as_mapping(changes),
        measured_s=replayer.measured_s,
        replayed_s=replay.span_s,
        span_ratio=replay.span_s / replayer.measured_s if replayer.measured_s else 1.0,
        inferred_dependencies=replayer.num_inferred,
        latency_s=dict(sorted(replayer.split.latency_s.items())),
        ranks=tuple(
            _rank(rank.rank, break_down(rank.rows), break_down(after.rows))
            for rank, after in zip(measured.ranks, replay.trace.ranks, strict=True)
        ),
        warnings=warnings_of((*measured.warnings, *_doubts(replayer, changes, unchanged.span_s))),
    )


def summarise_chakra(
    path: Path, trace: ChakraTrace, runs: tuple[Timeline, Timeline], changes: Changes
) -> ReplaySummary:
    """Return the same figures of Chakra traces; ``runs``: with their own durations, and with the changes."""
    before_s, after_s = (run.duration_s for run in runs)
    before, after = ({rank: run.spans(run.select(rank=rank)) for rank in trace.ranks} for run in runs)
    return ReplaySummary(
        path=str(path),
        num_ranks=len(trace.ranks),
        changes=as_mapping(changes),
        measured_s=before_s,
        replayed_s=after_s,
        span_ratio=after_s / before_s if before_s else 1.0,
        inferred_dependencies=0,
        latency_s={},
        ranks=tuple(_rank(rank, break_down(before[rank]), break_down(after[rank])) for rank in trace.ranks),
        warnings=warnings_of(trace.warnings),
    )


def _rank(rank: int, measured: Breakdown, replayed: Breakdown) -> ReplayedRank:
    return ReplayedRank(rank=rank, measured=_parts(measured), replayed=_parts(replayed))


def _parts(parts: Breakdown) -> RankParts:
    return RankParts(
        span_s=parts.span_s,
        compute_s=parts.compute_s,
        exposed_communication_s=parts.exposed_communication_s,
        memory_s=parts.memory_s,
        idle_s=parts.idle_s,
    )


def _doubts(replayer: Replayer, changes: Changes, unchanged_s: float) -> list[Doubt]:
    """Return what the answer takes for granted and this trace cannot say."""
    trace = replayer.trace
    doubts = list[Doubt]()
    off = unchanged_s / replayer.measured_s - 1 if replayer.measured_s else 0.0
    if abs(off) > REPRODUCED_WITHIN:
        doubts.append(Doubt("not_reproduced", 1, f"{format_time(unchanged_s)} ({format_change(off)})"))
    unlaunched = sum(int(np.isnan(rank.rows.launch_s).sum()) for rank in trace.ranks)
    if unlaunched:
        doubts.append(Doubt("unlaunched", unlaunched))
    if replayer.num_inferred:
        doubts.append(Doubt("inferred", replayer.num_inferred))
    communicates = any(rank.rows.facts for rank in trace.ranks)
    world_size = job_size(trace.ranks)
    if communicates and world_size > len(trace.ranks):
        doubts.append(Doubt("others_absent", len(trace.ranks), f"{world_size:,}"))
    if changes.touches_network and replayer.unsplit_kinds:
        doubts.append(Doubt("one_size", len(replayer.unsplit_kinds), ", ".join(replayer.unsplit_kinds)))
    return doubts


def print_replay(summary: ReplaySummary, console: Console, out: Path | None = None) -> None:
    """Print a replay's figures for people."""
    count = summary.num_ranks
    console.print(Text(f"{summary.path}, {count:,} rank{'s' if count != 1 else ''}", style="bold"), soft_wrap=True)
    grid = Table.grid(padding=(0, 2))
    grid.add_row("measured", format_time(summary.measured_s))
    change = format_change(round(summary.span_ratio - 1, 4) + 0.0, 2)
    grid.add_row("replayed", Text(f"{format_time(summary.replayed_s)} ({change})", style="bold"))
    said = ", ".join(f"{key}={value:g}x" for key, value in summary.changes.items())
    grid.add_row("changed", Text(said) if said else "nothing: how well the replay reproduces the run")
    console.print(grid)
    console.print()
    console.print(_parts_table(summary.ranks))
    if out is not None:
        console.print()
        console.print(Text(f"written to {out}"), soft_wrap=True)


def _parts_table(ranks: Sequence[ReplayedRank]) -> Table:
    """Return where the time went before and after, mean over ranks."""
    table = Table("mean over ranks", "measured", "replayed", "change", box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, part_s in _PARTS:
        before_s = sum(part_s(rank.measured) for rank in ranks) / len(ranks)
        after_s = sum(part_s(rank.replayed) for rank in ranks) / len(ranks)
        table.add_row(label, format_time(before_s), format_time(after_s), _signed(difference_s(after_s, before_s)))
    return table


def _signed(time_s: float) -> str:
    return f"{'-' if time_s < 0 else '+'}{format_time(abs(time_s))}"
