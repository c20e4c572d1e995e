"""Clocks of different hosts are brought together on the collectives that ranks share; what does not fit is said."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.traces.kineto_traces import activity, all_reduce, annotation, document, launch, shared_trace, texts_of, write
from traces.kineto.clock import align
from traces.kineto.document import Source, sources
from traces.kineto.matching import match
from traces.kineto.rank import RankTrace
from traces.kineto.read import read_rank
from traces.kineto.statistics import collective_rates
from traces.kineto.trace import load, to_timeline
from traces.perfetto import write_perfetto

SEND = "ncclDevKernel_SendRecv(x)"


def rank_trace(folder: Path, rank: int, events: list[dict], **others: object) -> RankTrace:
    """Return one rank's trace, by way of its file."""
    path = write(folder / f"rank{rank}.json", document(events, rank=rank, **others))
    return read_rank(Source(str(path), path.read_bytes))


@given(
    offsets=st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=5),
    durations=st.lists(st.floats(1.0, 500.0), min_size=3, max_size=9),
)
@settings(max_examples=examples(10))
def test_any_offset_is_found(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[float], durations: list[float]
) -> None:
    """Whatever the clocks' differences, up to a quarter of an hour, ends agree afterwards to the files' resolution."""
    folder = tmp_path_factory.mktemp("clocks")
    everyone, traces, end = list(range(len(offsets))), [], 0.0
    ends = [end := end + 1000.0 + duration for duration in durations]
    for rank, offset in enumerate(offsets):
        spans = zip(ends, durations, strict=True)
        events = [all_reduce(2e9 + offset + e - d / (rank + 1), d / (rank + 1), ranks=everyone) for e, d in spans]
        traces.append(rank_trace(folder, rank, events, world_size=len(offsets)))
    alignment = align(traces, match(traces).collectives)
    assert alignment.unaligned == ()
    assert alignment.num_collectives == len(durations)
    assert np.abs(alignment.worst_residual_s).max() < 2e-6
    moved_s = alignment.offset_s - alignment.offset_s[0]
    assert moved_s == pytest.approx([(offsets[0] - offset) * 1e-6 for offset in offsets], abs=5e-6)


def test_late_ends_of_a_few_collectives_move_nothing(tmp_path: Path) -> None:
    """Two of nine collectives that end 3 ms later on one rank leave its clock alone, and show as the worst residual."""
    late = {2: 3000.0, 5: 3000.0}
    for rank in range(2):
        events = [all_reduce(10_000.0 * k, 100.0 + (late.get(k, 0.0) if rank else 0.0)) for k in range(9)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    clock = load(tmp_path).alignment
    assert clock.offset_s == pytest.approx([0.0, 0.0], abs=1e-9)
    assert clock.residual_s == pytest.approx([0.0, 0.0], abs=1e-9)
    assert clock.worst_residual_s.max() == pytest.approx(1.5e-3)


def test_ranks_are_aligned_through_others(tmp_path: Path) -> None:
    """Ranks 0 and 2 share no group, but both share one with rank 1: all three get one clock."""
    clocks = {0: 0.0, 1: 7e6, 2: -3e6}
    groups = {(0, 1): 1000.0, (1, 2): 2000.0}
    for rank, offset in clocks.items():
        mine = {group: at for group, at in groups.items() if rank in group}
        events = [all_reduce(1e9 + offset + at, 50.0, ranks=group) for group, at in mine.items()]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=3))
    trace = load(tmp_path)
    assert trace.alignment.unaligned == ()
    timeline = to_timeline(trace)
    assert timeline.start_s[timeline.rank == 1] * 1e6 == pytest.approx([0.0, 1000.0], abs=0.01)
    assert timeline.start_s[timeline.rank == 2] * 1e6 == pytest.approx([1000.0], abs=0.01)


def test_files_that_count_from_different_times_agree(tmp_path: Path) -> None:
    """Times relative to a file's baseTimeNanoseconds are compared as what they mean."""
    for rank, base_s in enumerate((1_700_000_000, 1_700_000_100)):
        events = [all_reduce(5e8 - 1e6 * (base_s - 1_700_000_000), 50.0)]
        content = document(events, rank=rank, world_size=2, baseTimeNanoseconds=base_s * 10**9)
        write(tmp_path / f"rank{rank}.json", content)
    assert load(tmp_path).alignment.offset_s == pytest.approx([0.0, 0.0], abs=1e-6)


def test_rank_without_shared_collectives_is_named(tmp_path: Path) -> None:
    """A rank that shares nothing keeps its own clock, and a warning names it."""
    write(tmp_path / "rank0.json", document([activity("gemm", 100, 5)], rank=0, world_size=2))
    write(tmp_path / "rank1.json", document([activity("gemm", 130, 5)], rank=1, world_size=2))
    trace = load(tmp_path)
    assert trace.alignment.unaligned == (1,)
    assert np.isnan(trace.alignment.residual_s).all()
    assert any("1 rank shares no matched collective with the first rank" in words for words in texts_of(trace.warnings))
    assert to_timeline(trace).start_s * 1e6 == pytest.approx([0.0, 30.0])


def test_clocks_that_do_not_fit_are_told(tmp_path: Path) -> None:
    """Where ends still lie far apart after alignment, as with drifting clocks, a warning says by how much."""
    for rank in range(2):
        events = [all_reduce(1e6 * k * (1 + 0.05 * rank), 100.0) for k in range(9)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    assert any("still differ on 2 ranks" in words for words in texts_of(load(tmp_path).warnings))


def test_a_broadcast_says_nothing_of_the_clock(tmp_path: Path) -> None:
    """The root of a broadcast may leave early, so its end aligns nothing."""
    for rank in range(2):
        events = [all_reduce(100 + 9 * rank, 50, Collective_name="broadcast")]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    trace = load(tmp_path)
    assert len(trace.matches.collectives[0].members) == 2
    assert trace.alignment.num_collectives == 0


def test_counts_that_differ_are_not_matched(tmp_path: Path) -> None:
    """Three collectives here and two there, in one step, could be any: none is matched, all are counted."""
    for rank in range(2):
        events = [all_reduce(1000 * k, 50) for k in range(3 - rank)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    trace = load(tmp_path)
    assert {len(collective.members) for collective in trace.matches.collectives} == {1}
    assert len(trace.matches.collectives) == 5
    assert any(
        words.startswith("5 collectives: the ranks of the group have different numbers")
        for words in texts_of(trace.warnings)
    )


def test_sizes_that_differ_are_not_matched(tmp_path: Path) -> None:
    """An all_reduce of another size on the other rank is another one."""
    for rank in range(2):
        events = [all_reduce(1000, 50, elements=100 + rank)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    trace = load(tmp_path)
    assert [len(collective.members) for collective in trace.matches.collectives] == [1, 1]
    assert any(words.startswith("2 collectives have another size on other ranks") for words in texts_of(trace.warnings))


def test_numbers_of_torch_match_what_order_would_not(tmp_path: Path) -> None:
    """Where the kernels carry torch's number, a rank that began recording later still finds its partners."""
    for rank in range(2):
        events = [all_reduce(1000 * k, 50 + k, elements=64, Seq=k) for k in range(rank, 4)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    trace = load(tmp_path)
    assert sorted(len(collective.members) for collective in trace.matches.collectives) == [1, 2, 2, 2]
    assert trace.alignment.worst_residual_s == pytest.approx([0.0, 0.0], abs=1e-9)


def test_steps_match_where_one_rank_recorded_more(tmp_path: Path) -> None:
    """The collectives of step 5 are matched though one rank also recorded step 4."""
    for rank in range(2):
        events = []
        for number in range(4 + rank, 6):
            at = 10_000 * number
            events += [annotation(f"ProfilerStep#{number}", at, 9_000), launch(number, at + 10)]
            events.append(all_reduce(at + 100, 50, correlation=number))
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    members = sorted(len(collective.members) for collective in load(tmp_path).matches.collectives)
    assert members == [1, 2]


def test_messages_join_send_and_receive(tmp_path: Path) -> None:
    """The k-th send from one rank to another is joined to its k-th receive, and drawn as an arrow."""
    for rank, (kind, peer) in enumerate((("send", {"Dst_Rank": 1}), ("recv", {"Src_Rank": 0}))):
        events = [all_reduce(1000 * k + rank, 50, Collective_name=kind, **peer) for k in range(2)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    timeline = to_timeline(load(tmp_path))
    assert timeline.messages.send.tolist() == [0, 1]
    assert timeline.messages.recv.tolist() == [2, 3]
    write_perfetto(timeline, tmp_path / "out.json.gz")
    assert (tmp_path / "out.json.gz").stat().st_size > 0


def test_messages_that_are_not_sent_as_often_as_received_are_counted(tmp_path: Path) -> None:
    """Which of three sends met which of two receives cannot be told; those to a rank without a file are expected."""
    for rank, (kind, peer, count) in enumerate((("send", {"Dst_Rank": 1}, 3), ("recv", {"Src_Rank": 0}, 2))):
        events = [all_reduce(1000 * k + rank, 50, Collective_name=kind, **peer) for k in range(count)]
        events.append(all_reduce(9000, 50, Collective_name="send", Dst_Rank=2))
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=3))
    matches = load(tmp_path).matches
    assert matches.messages == ()
    assert texts_of(matches.warnings) == [
        "5 ends of messages: a rank sends another number of messages than its peer receives: not matched"
    ]


def test_bus_bandwidth_counts_from_the_last_arrival(tmp_path: Path) -> None:
    """Of a rank that waits 900 us and one that comes last, the last one's 100 us are the collective's time."""
    for rank, (start, lasting) in enumerate(((0, 1000), (900, 100))):
        events = [all_reduce(start, lasting, elements=250_000)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    [rate] = collective_rates(load(tmp_path))
    assert (rate.num_seen, rate.num_ranks, rate.num_bytes, rate.count) == (2, 2, 1_000_000, 1)
    assert rate.algorithm_bandwidth_bytes_per_s == pytest.approx(1e10)
    assert rate.bus_bandwidth_bytes_per_s == pytest.approx(1e10)  # 2 (n - 1) / n is 1 for two ranks


@pytest.mark.parametrize(
    ("name", "factor"), [("allreduce", 1.5), ("_allgather_base", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)]
)
def test_bus_bandwidth_follows_the_kind(tmp_path: Path, name: str, factor: float) -> None:
    """In a group of four, the factors are 2(n-1)/n of an all_reduce, (n-1)/n of a gather, 1 of a broadcast."""
    path = write(
        tmp_path / "rank0.json",
        document([all_reduce(0, 100, elements=250_000, ranks=range(4), Collective_name=name)], world_size=4),
    )
    [rate] = collective_rates(load(path))
    assert rate.bus_bandwidth_bytes_per_s == pytest.approx(factor * 1e10)
    assert (rate.num_seen, rate.num_ranks) == (1, 4)


@pytest.mark.parametrize("world_size", [None, 1])
def test_no_bandwidth_without_partners(tmp_path: Path, world_size: int | None) -> None:
    """Of a group that is not known, or that has one rank, there is no bus bandwidth: None, not zero."""
    unnamed = {"Process_Group_Ranks": None, "Process_Group_Name": None, "Group_size": None}
    content = document([all_reduce(0, 100, **unnamed)], world_size=world_size)
    [rate] = collective_rates(load(write(tmp_path / "rank0.json", content)))
    assert rate.num_ranks == (world_size or 0)
    assert rate.algorithm_bandwidth_bytes_per_s == pytest.approx(1024 / 100e-6)
    assert rate.bus_bandwidth_bytes_per_s is None


def test_real_ranks_on_two_hosts_clocks_agree_again(tmp_path: Path) -> None:
    """Four of eight real ranks, put on a clock that is 3.7 s ahead, come back to where they were, to a microsecond."""
    there = load(shared_trace("dlrm_v100_8_ranks.tar.gz"))
    with sources(shared_trace("dlrm_v100_8_ranks.tar.gz")) as found:
        for source in found:
            content = json.loads(source.read())
            ahead = 3_700_000 * (content["distributedInfo"]["rank"] >= 4)
            for event in content["traceEvents"]:
                event["ts"] += ahead
            write(tmp_path / f"rank{content['distributedInfo']['rank']}.json", content)
    moved = load(tmp_path)
    expected_s = there.alignment.offset_s - 3.7 * (np.arange(8) >= 4)
    assert moved.alignment.offset_s == pytest.approx(expected_s, abs=1e-6)
    assert moved.alignment.residual_s.max() < 2e-6
    assert to_timeline(moved).start_s == pytest.approx(to_timeline(there).start_s, abs=1e-6)


def test_order_of_files_and_events_changes_nothing(tmp_path: Path) -> None:
    """Events in any order in the file give the same timeline."""
    events = [all_reduce(500 * k, 50) for k in range(4)] + [activity("gemm", 500 * k + 100, 30) for k in range(4)]
    first = to_timeline(load(write(tmp_path / "rank0.json", document(events))))
    random.Random(7).shuffle(events)
    second = to_timeline(load(write(tmp_path / "rank0.json", document(events))))
    assert np.array_equal(first.start_s, second.start_s)
    assert [first.name.at(row) for row in range(8)] == [second.name.at(row) for row in range(8)]
