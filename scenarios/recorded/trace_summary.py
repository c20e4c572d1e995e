"""A profile of the PyTorch profiler in figures."""

import math
from pathlib import Path
from typing import Final

from scenarios.summaries.recorded.recording_warning import warnings_of
from scenarios.summaries.recorded.trace import AlignedClocks, RecordedCollective, RecordedRank, TraceSummary
from traces.kineto.breakdown import break_down
from traces.kineto.statistics import CollectiveRate, collective_rates, longest_kernels
from traces.kineto.trace import KinetoTrace

MAX_KERNELS: Final = 10


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
