"""A replayed recording in figures."""

from pathlib import Path
from typing import Final

import numpy as np

from costmodels.units import format_change, format_time
from scenarios.summaries.recorded.recording_warning import warnings_of
from scenarios.summaries.recorded.replay import RankParts, ReplayedRank, ReplaySummary
from sim.replay.changes import Changes, as_mapping
from sim.replay.run import Replay, Replayer
from traces.chakra.node import ChakraTrace
from traces.doubt import Doubt
from traces.kineto.breakdown import Breakdown, break_down
from traces.kineto.doubts import job_size
from traces.timeline import Timeline

REPRODUCED_WITHIN: Final = 0.03
"""What an unchanged replay may be off by before its figures are doubtful."""


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
