"""The breakdown of a rank's time is that of Holistic Trace Analysis on real traces, and right by hand on small ones."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.traces.kineto_traces import ALL_REDUCE, activity, document, shared_trace, write
from traces.kineto.breakdown import CLASSES, COMMUNICATION, COMPUTE, MEMORY, break_down, merge
from traces.kineto.document import Source, sources
from traces.kineto.rank import SYNC, WAIT, DeviceRows, RankTrace, StepWindow, select_steps
from traces.kineto.read import read_rank
from traces.kineto.trace import load
from traces.timeline import Spans, Words

HTA_CLASSES = {**CLASSES, WAIT: COMPUTE, SYNC: "other"}
"""HolisticTraceAnalysis counts a stream that waits for an event as compute, and a host that waits as busy."""

REFERENCE = {
    "alexnet_critical_path.json.gz": {0: (12929684.0, 10637.0, 55690.0, 12996011.0, None)},
    "ddp_a100_collective_arguments.json.gz": {
        0: (336419.7146875525, 76935.82800000906, 22232.018992125988, 435587.5616796875, 14.76)
    },
    "resnet_v100_ns_resolution.json.gz": {
        0: (6452.760999916063, 374738.00600004196, 3443.7560000419617, 384634.523, None)
    },
    "trace_diff_control.json.gz": {3: (62119.0, 234760.0, 86525.0, 383404.0, 47.03)},
    "trace_diff_test.json.gz": {1: (46910.0, 429216.0, 152245.0, 628371.0, 68.8)},
    "dlrm_v100_8_ranks.tar.gz": {
        0: (6419.0, 1034.0, 5556.0, 13009.0, 4.5),
        1: (6428.0, 1246.0, 11075.0, 18749.0, 2.47),
        2: (7046.0, 1068.0, 3236.0, 11350.0, 7.88),
        3: (8145.0, 1240.0, 9468.0, 18853.0, 3.31),
        4: (8887.0, 1126.0, 6576.0, 16589.0, 0.56),
        5: (9121.0, 1041.0, 6230.0, 16392.0, 0.64),
        6: (7051.0, 1051.0, 3308.0, 11410.0, 7.56),
        7: (8308.0, 1059.0, 1600.0, 10967.0, 9.51),
    },
}
"""Microseconds idle, computing, busy without computing, in all, and percent of communication that computing hides.

From HolisticTraceAnalysis 0.5.0 with pandas 3.1.1 and numpy 2.4.6, in an environment of its own (it brings JupyterLab,
so it is none of the tests' packages), with ``HTA_DISABLE_NS_ROUNDING=1``:

    t = TraceAnalysis(trace_files={0: path}, trace_dir=folder)   # of the archive: TraceAnalysis(trace_dir=unpacked)
    t.get_temporal_breakdown(visualize=False); t.get_comm_comp_overlap(visualize=False)
"""

ROUNDED = {
    "ddp_a100_collective_arguments.json.gz": (338781.0, 75169.0, 21636.0, 435586.0, 14.31),
    "resnet_v100_ns_resolution.json.gz": (10113.0, 372150.0, 2371.0, 384634.0, None),
}
"""The same without that variable: starts rounded up and ends down to microseconds, so that every gap grows."""


def whole_steps(path: Path) -> tuple[RankTrace, ...]:
    """Return the ranks with the steps that are whole, waiting included."""
    with sources(path) as found:
        ranks = tuple(sorted((read_rank(source) for source in found), key=lambda trace: trace.rank))
    return select_steps(ranks, StepWindow())[0]


def figures(rows: DeviceRows) -> tuple[float, float, float, float, float | None]:
    """Return the figures of REFERENCE."""
    parts = break_down(rows, HTA_CLASSES)
    hidden = parts.overlap_fraction
    seconds = (parts.idle_s, parts.compute_s, parts.non_compute_s, parts.span_s)
    return *(1e6 * part_s for part_s in seconds), None if hidden is None else round(100 * hidden, 2)


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_breakdown_is_that_of_holistic_trace_analysis(name: str) -> None:
    """On every real trace idle, compute, other and total time agree to a nanosecond, the hidden part to its digits."""
    ranks = {trace.rank: trace for trace in whole_steps(shared_trace(name))}
    assert set(ranks) == set(REFERENCE[name])
    for rank, expected in REFERENCE[name].items():
        found = figures(ranks[rank].rows)
        assert found[:4] == pytest.approx(expected[:4], abs=1e-3)
        assert found[4] == expected[4]


@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_rounding_explains_the_other_figures_of_holistic_trace_analysis(name: str) -> None:
    """With starts rounded up and ends down to microseconds the figures are those that it gives by default."""
    path = shared_trace(name)
    raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ends = {
        (event["args"]["correlation"], math.ceil(event["ts"])): math.floor(event["ts"] + event["dur"])
        for event in raw
        if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}
    }
    [trace] = whole_steps(path)
    starts = np.ceil(np.round(trace.rows.start_s * 1e6, 4))
    keys = zip(trace.rows.correlation.tolist(), (starts + trace.origin_us).tolist(), strict=True)
    rounded_us = np.array([ends[number, int(start)] for number, start in keys]) - trace.origin_us
    found = figures(replace(trace.rows, start_s=starts * 1e-6, end_s=rounded_us * 1e-6))
    assert found[:4] == pytest.approx(ROUNDED[name][:4], abs=1e-3)
    assert found[4] == ROUNDED[name][4]


def test_waiting_is_no_work(tmp_path: Path) -> None:
    """A stream that waits for an event, or a host that waits, is neither compute nor busy for us."""
    events = [
        activity("gemm", 0, 10, correlation=1),
        activity("Stream Wait Event", 10, 20, cat="cuda_sync", correlation=2),
        activity("Stream Sync", 40, 20, cat="cuda_sync", correlation=3),
        activity("gemm", 90, 10, correlation=4),
    ]
    [rank] = load(write(tmp_path / "rank0.json", document(events))).ranks
    parts = break_down(rank.rows)
    assert parts.span_s == pytest.approx(100e-6)
    assert parts.compute_s == pytest.approx(20e-6)
    assert parts.idle_s == pytest.approx(80e-6)


def test_parts_of_a_rank_by_hand(tmp_path: Path) -> None:
    """Overlapping activities of one class count once; communication under compute is hidden, the rest exposed."""
    events = [
        activity("gemm", 0, 40, correlation=1),
        activity("gemm", 20, 30, stream=8, correlation=2),
        activity(ALL_REDUCE, 40, 40, stream=20, correlation=3),
        activity("Memcpy HtoD (Pinned -> Device)", 90, 5, cat="gpu_memcpy", bytes=4096, correlation=4),
        activity("Memset (Device)", 92, 8, cat="gpu_memset", bytes=64, correlation=5),
    ]
    [rank] = load(write(tmp_path / "rank0.json", document(events))).ranks
    parts = break_down(rank.rows)
    found = (parts.span_s, parts.compute_s, parts.communication_s, parts.memory_s, parts.idle_s, parts.overlap_s)
    assert found == pytest.approx((100e-6, 50e-6, 40e-6, 10e-6, 10e-6, 10e-6))
    assert parts.exposed_communication_s == pytest.approx(30e-6)
    assert parts.non_compute_s == pytest.approx(40e-6)
    assert parts.overlap_fraction == pytest.approx(0.25)


def test_no_communication_hides_nothing() -> None:
    """Without communication there is no part of it to hide: None, not zero."""
    raw = json.dumps(document([activity("gemm", 5, 7, correlation=1)])).encode()
    parts = break_down(read_rank(Source("one.json", lambda: raw)).rows)
    assert parts.overlap_fraction is None
    assert parts.idle_s == 0.0


KINDS = ("compute", "all_reduce", "send", "memcpy", "memset", WAIT, SYNC)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=25))
def test_parts_are_those_of_counting(activities: list[tuple[str, int, int]]) -> None:
    """Whatever overlaps on whatever streams, and lasts no time at all, each part is the unit cells that it covers."""
    kinds, starts, lasting = zip(*activities, strict=True)
    start_s = np.array(starts, dtype=float)
    column = Words(np.array([KINDS.index(kind) for kind in kinds], dtype=np.int32), KINDS)
    parts = break_down(Spans(column, start_s, start_s + np.array(lasting)))
    cells = {name: set[int]() for name in CLASSES.values()}
    work = [(kind, start, start + length) for kind, start, length in activities if kind in CLASSES]
    for kind, start, end in work:
        cells[CLASSES[kind]] |= set(range(start, end))
    compute, communication, memory = (cells[name] for name in (COMPUTE, COMMUNICATION, MEMORY))
    busy = compute | communication | memory
    span_s = max((end for _, _, end in work), default=0) - min((start for _, start, _ in work), default=0)
    assert (parts.span_s, parts.idle_s) == (span_s, span_s - len(busy))
    assert (parts.compute_s, parts.communication_s, parts.memory_s) == tuple(map(len, (compute, communication, memory)))
    assert (parts.overlap_s, parts.exposed_communication_s) == tuple(
        map(len, (compute & communication, communication - compute))
    )
    assert parts.non_compute_s == len(busy - compute)


def test_communication_that_compute_hides_is_never_less_than_nothing() -> None:
    """Where all communication is hidden nothing of it is exposed, not 1e-22 s too little by rounding either."""
    column = Words(np.array([0, 1], dtype=np.int32), KINDS)
    parts = break_down(Spans(column, np.array([4e-7, 4e-7]), np.array([14e-7, 5e-7])))
    assert parts.exposed_communication_s == 0.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=25))
def test_union_of_intervals_is_that_of_counting(spans: list[tuple[int, int]]) -> None:
    """Merged intervals are disjoint, in order, and cover exactly the unit cells that some interval covers."""
    starts = np.array([start for start, _ in spans], dtype=float)
    ends = np.array([start + length for start, length in spans], dtype=float)
    merged_starts, merged_ends = merge(starts, ends)
    cells = {cell for start, length in spans for cell in range(start, start + length)}
    assert np.sum(merged_ends - merged_starts) == len(cells)
    assert (merged_starts[1:] > merged_ends[:-1]).all()
