"""Which kernels of several ranks are one: by group, step and order, and never against what the trace says."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sim.replay.changes import Changes
from sim.replay.run import Replayer
from tests.traces.kineto_traces import Event, all_reduce, annotation, document, launch, write
from traces.doubt import Doubt
from traces.kineto.statistics import collective_rates
from traces.kineto.trace import KinetoTrace, load

UNKNOWN: dict[str, Any] = {"Process_Group_Ranks": None, "Process_Group_Name": None, "Group_size": None}
NAMED: dict[str, Any] = {"Process_Group_Ranks": None, "Process_Group_Name": "5", "Group_size": 2}
STEP_US = 10_000


def profile(folder: Path, ranks: Sequence[Sequence[Event]]) -> KinetoTrace:
    """Return a profile of so many ranks, by way of their files."""
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", document(events, rank=rank, world_size=len(ranks)))
    return load(folder)


def step_of(number: int, kernels: Sequence[Event]) -> list[Event]:
    """Return a step of the profiler that launches kernels, at whose starts it does not look."""
    events = [annotation(f"ProfilerStep#{number}", STEP_US * number, STEP_US)]
    for place, kernel in enumerate(kernels):
        correlation = 100 * number + place + 1
        kernel["args"]["correlation"] = correlation
        events += [launch(correlation, STEP_US * number + 10 + place), kernel]
    return events


def message(at: float, kind: str, peer: int, *, elements: int = 256) -> Event:
    """Return one end of a message."""
    end = {"send": {"Dst_Rank": peer}, "recv": {"Src_Rank": peer}}[kind]
    return all_reduce(at, 50, elements=elements, Collective_name=kind, **end)


def sizes(trace: KinetoTrace) -> list[int]:
    """Return how many ranks each collective has."""
    return sorted(len(collective.members) for collective in trace.matches.collectives)


def doubts(trace: KinetoTrace) -> dict[str, int]:
    """Return how often what is doubtful of the matching."""
    kinds = {"member_absent", "message_ends", "message_size", "not_as_many", "other_members", "other_moment"}
    return {doubt.kind: doubt.count for doubt in trace.warnings if doubt.kind in kinds}


# --- collectives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [UNKNOWN, {}], ids=["unknown", "known"])
def test_a_rank_without_a_steps_collectives_is_counted(tmp_path: Path, group: dict[str, Any]) -> None:
    """Where one rank of three recorded none of a step's collectives the others' are matched, and what lacks is said."""
    ranks = []
    for rank in range(3):
        by_step = {
            step: [all_reduce(STEP_US * step + 500 * k, 50, ranks=range(3), **group) for k in range(2)]
            for step in (3, 4)
        }
        if rank == 1:
            by_step[4] = []
        ranks.append([event for step, kernels in by_step.items() for event in step_of(step, kernels)])
    trace = profile(tmp_path, ranks)
    assert sizes(trace) == [2, 2, 3, 3]
    assert doubts(trace) == {"member_absent": 2}


def test_a_rank_outside_the_group_lacks_nothing(tmp_path: Path) -> None:
    """Who is not of a group, or has no file, is not missed."""
    ranks = [
        [all_reduce(0, 50, ranks=(0, 1, 7))],
        [all_reduce(0, 50, ranks=(0, 1, 7))],
        [all_reduce(99, 9, ranks=(2,))],
    ]
    trace = profile(tmp_path, ranks)
    assert sizes(trace) == [1, 2]
    assert doubts(trace) == {}


@pytest.mark.parametrize("ranks", [(3, 5), None], ids=["listed", "named"])
def test_a_collective_is_on_no_ranks_that_its_group_does_not_have(
    tmp_path: Path, ranks: tuple[int, ...] | None
) -> None:
    """Two groups of two that share a name, or ranks that a group does not list: nothing is matched over all four."""
    given = {"ranks": ranks} if ranks else NAMED
    trace = profile(tmp_path, [[all_reduce(1000 * k, 50, **given) for k in range(2)] for _ in range(4)])
    assert sizes(trace) == [1] * 8
    assert doubts(trace) == {"other_members": 8}


def test_pairs_of_unknown_groups_that_run_at_other_times_are_not_matched(tmp_path: Path) -> None:
    """All_reduces of two pairs at times that no shift of clocks brings together are told apart; those of all stay."""
    together, apart = [0, 30_000, 60_000, 90_000], {0: [5_000, 40_000], 1: [9_000, 47_000]}
    ranks = [[all_reduce(at, 50, **UNKNOWN) for at in sorted([*together, *apart[rank // 2]])] for rank in range(4)]
    trace = profile(tmp_path, ranks)
    assert sizes(trace) == [1] * 8 + [4] * 4
    assert doubts(trace) == {"other_moment": 2}
    assert trace.alignment.worst_residual_s == pytest.approx([0.0] * 4, abs=1e-9)
    assert Replayer(trace).run(Changes()).span_s == pytest.approx(90_050e-6)


def test_where_most_of_unknown_groups_are_refuted_the_others_are_chance(tmp_path: Path) -> None:
    """Two pairs whose all_reduces meet by chance alone share none: no clock is moved for the few that overlap."""
    ranks = []
    for rank in range(4):
        random = Random(rank // 2)
        ranks.append([all_reduce(1000 * k + random.uniform(-300, 300), 50, **UNKNOWN) for k in range(200)])
    trace = profile(tmp_path, ranks)
    assert sizes(trace) == [1] * 800
    assert doubts(trace) == {"other_moment": 200}
    assert trace.alignment.unaligned == (1, 2, 3)


def test_a_group_of_known_size_alone_has_that_many_ranks(tmp_path: Path) -> None:
    """Torch once wrote how many ranks a group has and nothing else: all of a job of four, but not all of eight."""
    sized = {**UNKNOWN, "Group_size": 4}
    for count, members in ((4, [4]), (8, [1] * 8)):
        folder = tmp_path / str(count)
        folder.mkdir()
        trace = profile(folder, [[all_reduce(0, 100, elements=250_000, **sized)] for _ in range(count)])
        assert sizes(trace) == members
        [rate] = collective_rates(trace)
        assert (rate.num_ranks, rate.bus_bandwidth_bytes_per_s) == (4, pytest.approx(1.5e10))


def test_unknown_groups_on_clocks_that_differ_are_matched_as_ever(tmp_path: Path) -> None:
    """An hour between two hosts says nothing against a collective of all ranks: their clocks are brought together."""
    ranks = [[all_reduce(3.6e9 * (rank // 2) + 977 * k * k, 50, **UNKNOWN) for k in range(6)] for rank in range(4)]
    trace = profile(tmp_path, ranks)
    assert sizes(trace) == [4] * 6
    assert doubts(trace) == {}
    assert trace.alignment.worst_residual_s == pytest.approx([0.0] * 4, abs=1e-6)


# --- messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [{"send": 3}, {"send": 3, "recv": 5}], ids=["one end", "one of each end"])
def test_a_message_that_is_missing_in_one_step_shifts_no_other(tmp_path: Path, lost: dict[str, int]) -> None:
    """Ends meet within their step: where one is missing those of that step stay alone, and are counted."""
    ranks = []
    for rank, kind in enumerate(("send", "recv")):
        events = []
        for step in range(3, 6):
            ends = [message(STEP_US * step + 100 * k, kind, 1 - rank) for k in range(3)]
            events += step_of(step, ends[step == lost.get(kind) :])
        ranks.append(events)
    trace = profile(tmp_path, ranks)
    starts_s = [
        (trace.ranks[0].rows.start_s[sent], trace.ranks[1].rows.start_s[received])
        for (_, sent), (_, received) in trace.matches.messages
    ]
    shift_us = trace.ranks[0].origin_us - trace.ranks[1].origin_us
    assert len(starts_s) == 3 * (3 - len(lost))
    assert all(one_s * 1e6 + shift_us == pytest.approx(other_s * 1e6) for one_s, other_s in starts_s)
    assert doubts(trace) == {"message_ends": 5 * len(lost)}


def test_messages_of_other_sizes_are_not_matched(tmp_path: Path) -> None:
    """A receive of other bytes than the send's is another message's."""
    ends = [("send", (64, 128, 256)), ("recv", (64, 256, 256))]
    ranks = [
        [message(1000 * k, kind, 1 - rank, elements=elements) for k, elements in enumerate(lengths)]
        for rank, (kind, lengths) in enumerate(ends)
    ]
    trace = profile(tmp_path, ranks)
    assert [(sent, received) for (_, sent), (_, received) in trace.matches.messages] == [(0, 0), (2, 2)]
    assert doubts(trace) == {"message_size": 2}
    assert Doubt("message_size", 2).text == "2 ends of messages have another size than the other end: not matched"
