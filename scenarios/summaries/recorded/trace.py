"""A profile of the PyTorch profiler in figures: the classes behind ``simulate trace --json``."""

from typing import Final

from msgspec import Struct

from scenarios.summaries.recorded.recording_warning import RecordingWarning
from traces.kineto.statistics import KernelTotal

TRACE_SCHEMA: Final = "meshtwin.trace/1"


class RecordedRank(Struct, frozen=True, kw_only=True):
    """The figures of one rank's file.

    ``span_s``: from the first activity to the last.
    ``overlap_s``: compute and communication at the same time; ``overlap_fraction``: as a fraction of communication,
        None without communication.
    ``peak_allocated_bytes``: None if the profiler recorded no memory. The residuals of the clock are None for a rank
        without matched collectives.
    """

    rank: int
    file: str
    num_streams: int
    num_activities: int
    span_s: float
    compute_s: float
    communication_s: float
    memory_s: float
    idle_s: float
    overlap_s: float
    non_compute_s: float
    exposed_communication_s: float
    overlap_fraction: float | None
    peak_allocated_bytes: int | None
    clock_offset_s: float
    clock_drift_ppm: float
    residual_s: float | None
    worst_residual_s: float | None


class RecordedCollective(Struct, frozen=True, kw_only=True):
    """Equal collectives of one group. ``num_ranks``, ``bytes`` and bandwidths are None if the files do not state them.

    ``num_seen``: the ranks of the group that were read.
    """

    kind: str
    group: str
    num_ranks: int | None
    num_seen: int
    dtype: str
    bytes: int | None
    count: int
    time_s: float
    algorithm_bandwidth_bytes_per_s: float | None
    bus_bandwidth_bytes_per_s: float | None


class AlignedClocks(Struct, frozen=True, kw_only=True):
    """The alignment of the ranks' clocks; ``worst_residual_s`` is None for one rank."""

    num_collectives: int
    worst_residual_s: float | None
    unaligned_ranks: tuple[int, ...]


class TraceSummary(Struct, frozen=True, kw_only=True):
    """The figures of a profile. ``steps``: the value of ``--steps``; ``world_size``: None if no file states it."""

    schema: str = TRACE_SCHEMA
    path: str
    num_ranks: int
    world_size: int | None
    num_events: int
    num_activities: int
    recorded_steps: tuple[int, ...]
    steps: str
    span_s: float
    ranks: tuple[RecordedRank, ...]
    kernels: tuple[KernelTotal, ...]
    collectives: tuple[RecordedCollective, ...]
    clock: AlignedClocks
    warnings: tuple[RecordingWarning, ...]
