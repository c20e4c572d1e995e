"""Laws of comparing timelines: alignment, where the step goes, what explains the difference."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
from tests.traces.kineto_traces import shared_trace
from traces.comparison.compare import Comparison, compare
from traces.comparison.critical_path import critical_path_s
from traces.comparison.sides import pair_ranks
from traces.comparison.step_time import StepTime
from traces.kineto.breakdown import break_down
from traces.kineto.rank import StepWindow
from traces.kineto.trace import load, to_timeline
from traces.timeline import RankInfo, Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]
KINDS = ("compute", "all_reduce", "memcpy")

ops = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(("compute", "tp")), st.sampled_from("abc"), st.sampled_from(KINDS),
        st.integers(0, 6), st.integers(0, 4), st.sampled_from((0, 64, 128)),
    ), min_size=1, max_size=12,
)  # fmt: skip


def built(rows: list[tuple[int, str, str, str, int, int, int]]) -> Timeline:
    """Return a timeline of (rank, stream, name, kind, start, duration, bytes)."""
    builder = TimelineBuilder()
    for rank, stream, name, kind, start, lasting, num_bytes in rows:
        builder.add(
            rank=rank, stream=stream, name=name, kind=kind, start_s=float(start), end_s=float(start + lasting),
            num_bytes=num_bytes,
        )  # fmt: skip
    return builder.build()


timelines = ops.map(built)


def scaled(timeline: Timeline, factor: float) -> Timeline:
    """Return a timeline that takes ``factor`` times as long."""
    return replace(timeline, start_s=timeline.start_s * factor, end_s=timeline.end_s * factor)


def pairs_of(comparison: Comparison) -> set[tuple[int, int]]:
    """Return the rows that belong together."""
    rows = comparison.sides.first.rows, comparison.sides.second.rows
    ours, theirs = rows[0][comparison.alignment.first], rows[1][comparison.alignment.second]
    return set(zip(ours.tolist(), theirs.tolist(), strict=True))


@pytest.mark.parametrize("ends_s", [(1.0, 1.0), (np.nextafter(1.0, 2.0), 1.0), (1.0, np.nextafter(1.0, 2.0))])
def test_an_op_of_no_duration_comes_after_the_op_that_ends_as_it_begins(ends_s: tuple[float, float]) -> None:
    """The critical path goes through both, also where rounding lets the longer one end a little later."""
    builder = TimelineBuilder()
    for name, stream, start_s, end_s in (
        ("product", "compute", 0.0, ends_s[0]), ("wait", "tp", ends_s[1], ends_s[1]), ("sum", "tp", ends_s[1], 2.0),
    ):  # fmt: skip
        builder.add(rank=0, stream=stream, name=name, kind=name, start_s=start_s, end_s=end_s, num_bytes=0)
    assert critical_path_s(builder.build()) == pytest.approx({"product": 1.0, "sum": 1.0})


@given(timelines)
def test_a_timeline_differs_in_nothing_from_itself(timeline: Timeline) -> None:
    """Every op is aligned with itself by name, and nothing differs."""
    comparison = compare(timeline, timeline)
    assert pairs_of(comparison) == {(row, row) for row in range(len(timeline))}
    assert comparison.alignment.by_name.all()
    assert comparison.same_work
    assert comparison.makespan_error == 0.0
    assert all(entry.difference_s == 0.0 for entry in (*comparison.contributions, *comparison.by_op))


@given(timelines, st.floats(0.1, 10.0))
def test_scaling_all_times_scales_everything(timeline: Timeline, factor: float) -> None:
    """A timeline ``factor`` times as long has that ratio in every op, kind, stream and part of the step."""
    comparison = compare(scaled(timeline, factor), timeline)
    assert len(comparison.alignment.first) == len(timeline)
    for entries in (comparison.by_op, comparison.by_kind, comparison.by_stream, comparison.contributions):
        for entry in entries:
            assert entry.first_s == pytest.approx(factor * entry.second_s, abs=1e-9)
    for name in StepTime.__struct_fields__:
        one, other = (getattr(step, name) for step in comparison.step_times)
        assert one == pytest.approx(factor * other, abs=1e-9)
    paths = comparison.critical_paths_s
    assert paths[0] == pytest.approx({kind: factor * spent_s for kind, spent_s in paths[1].items()})


@given(timelines, timelines)
def test_contributions_add_up_to_the_difference_of_the_steps(first: Timeline, second: Timeline) -> None:
    """Whatever the two have in common, ops and idling make up the step on each side, and so the difference."""
    comparison = compare(first, second)
    assert sum(entry.first_s for entry in comparison.contributions) == pytest.approx(first.duration_s)
    assert sum(entry.second_s for entry in comparison.contributions) == pytest.approx(second.duration_s)
    for step in comparison.step_times:
        parts = step.compute_s + step.exposed_communication_s + step.exposed_memory_s + step.idle_s
        assert parts == pytest.approx(step.step_s)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25))
def test_shares_of_what_is_shown_and_of_all_others_add_up(lasting: list[tuple[int, int]]) -> None:
    """Ten ops, all others and idling have the whole difference between them, however many ops there are."""
    first, second = (
        built([(0, "compute", f"op {n}", "compute", 20 * n, both[side], 0) for n, both in enumerate(lasting)])
        for side in (0, 1)
    )
    explained = compare(first, second).explained
    shares = [*explained.ops, explained.others, explained.idle]
    assert sum(entry.difference_s for entry, _ in shares) == pytest.approx(first.duration_s - second.duration_s)
    apart = sorted((abs(one - other) for one, other in lasting if one != other), reverse=True)
    assert [abs(entry.difference_s) for entry, _ in explained.ops] == apart[:10]
    assert explained.num_others == len(apart[10:])
    whole = sum(apart) + abs(explained.idle[0].difference_s)
    expected = [part / whole if whole else 0.0 for part in (*apart[:10], sum(apart[10:]))]
    assert [share for _, share in shares[:-1]] == pytest.approx(expected)
    assert sum(share for _, share in shares) == pytest.approx(1.0 if whole else 0.0)


@given(timelines, timelines)
def test_alignment_is_symmetric(first: Timeline, second: Timeline) -> None:
    """Swapping the timelines swaps every pair, and turns missing into extra."""
    forth, back = compare(first, second), compare(second, first)
    assert pairs_of(forth) == {(one, other) for other, one in pairs_of(back)}
    assert forth.mismatches["missing"] == back.mismatches["extra"]
    differences = {entry.key: entry.difference_s for entry in forth.by_kind}
    assert differences == pytest.approx({entry.key: -entry.difference_s for entry in back.by_kind})


@given(timelines, timelines)
def test_no_op_has_two_partners(first: Timeline, second: Timeline) -> None:
    """Ops are in at most one pair; pairs by name have one name and rank, pairs by kind one kind."""
    comparison = compare(first, second)
    both, alignment = comparison.sides, comparison.alignment
    for chosen, alone, side in (
        (alignment.first, alignment.first_alone, both.first), (alignment.second, alignment.second_alone, both.second),
    ):  # fmt: skip
        assert sorted([*chosen.tolist(), *alone.tolist()]) == list(range(len(side)))
    assert (both.first.pair[alignment.first] == both.second.pair[alignment.second]).all()
    same_name = both.first.name[alignment.first] == both.second.name[alignment.second]
    assert (same_name | ~alignment.by_name).all()
    same_kind = both.first.kind[alignment.first] == both.second.kind[alignment.second]
    assert (same_kind | alignment.by_name).all()


@given(timelines)
def test_critical_path_covers_the_step(timeline: Timeline) -> None:
    """Its parts are positive and add up to the timeline's duration."""
    parts = critical_path_s(timeline)
    assert sum(parts.values()) == pytest.approx(timeline.duration_s)
    assert all(spent_s > 0.0 for spent_s in parts.values())


@pytest.mark.parametrize(("known", "parts"), [
    (True, {"compute": 4.0, "all_reduce": 2.0}), (False, {"compute": 2.0, "all_reduce": 4.0}),
])  # fmt: skip
def test_critical_path_follows_the_last_to_come(known: bool, parts: dict[str, float]) -> None:
    """Where the members of a collective are known, the path goes on with the rank that the others waited for."""
    builder = TimelineBuilder()
    rows = []
    for rank, computing_s in enumerate((2.0, 4.0)):
        builder.add(rank=rank, stream="compute", name="a", kind="compute", start_s=0.0, end_s=computing_s)
        rows.append(builder.add(rank=rank, stream="dp", name="b", kind="all_reduce", start_s=computing_s, end_s=6.0))
    if known:
        builder.add_collective(rows)
    assert critical_path_s(builder.build()) == pytest.approx(parts)


def test_critical_path_goes_on_where_ops_without_duration_cross() -> None:
    """Two barriers that ranks pass at one moment in opposite orders do not lead the path around in a circle."""
    builder = TimelineBuilder("simulated")

    def add(rank: int, name: str, kind: str, start_s: float, end_s: float) -> int:
        return builder.add(rank=rank, stream=name, name=name, kind=kind, start_s=start_s, end_s=end_s)

    add(0, "a", "compute", 0.0, 0.5)
    add(1, "b", "compute", 0.0, 0.4)
    (m0, x0), (x1, m1) = (
        [add(rank, name, "barrier", 1.0, 1.0) for name in names] for rank, names in ((0, "mx"), (1, "xm"))
    )
    add(0, "m", "compute", 1.0, 2.0)
    builder.add_collective([m0, m1])
    builder.add_collective([x0, x1])
    assert critical_path_s(builder.build()) == pytest.approx({"compute": 1.5, "idle": 0.5})


def test_a_missing_op_moves_no_other() -> None:
    """Without its third op, and with another instead of the sixth, a sequence of one name keeps all other pairs."""
    first = built([(0, "s", "abab"[i % 4], "compute", 10 * i, 1 + i, 0) for i in range(10)])
    second = built([(0, "s", "z" if i == 6 else "abab"[i % 4], "compute", 10 * i, 1 + i, 0)
                    for i in range(10) if i != 2])  # fmt: skip
    comparison = compare(first, second)
    both, alignment = comparison.sides, comparison.alignment
    assert both.first.lasting_s[alignment.first].tolist() == both.second.lasting_s[alignment.second].tolist()
    assert comparison.mismatches["missing"] == 1
    assert comparison.mismatches["name"] == 1


def test_renamed_ops_meet_by_kind_and_size() -> None:
    """Collectives of other names meet where their bytes agree, whatever is missing between them."""
    first = built([(0, "tp", f"ours{i}", "all_reduce", 10 * i, 1, 64 * (i + 1)) for i in range(4)])
    second = built([(0, "stream 20", f"nccl{i}", "all_reduce", 7 * i, 2, 64 * (i + 1)) for i in range(4) if i != 1])
    comparison = compare(first, second)
    sizes = comparison.sides.first.bytes[comparison.alignment.first].tolist()
    assert sizes == comparison.sides.second.bytes[comparison.alignment.second].tolist() == [64, 192, 256]
    assert comparison.sides.streams == ("tp | stream 20",)


def test_unequal_numbers_of_unsized_ops_stay_alone() -> None:
    """Kernels of other names without a size are not paired at random: only where both sides have equally many."""
    first = built([(0, "s", f"ours{i}", "compute", i, 1, 0) for i in range(3)])
    second = built([(0, "s", f"theirs{i}", "compute", i, 1, 0) for i in range(2)])
    assert len(compare(first, second).alignment.first) == 0
    assert len(compare(first, first).alignment.first) == 3


def test_hidden_communication_explains_nothing() -> None:
    """An all_reduce twice as long that compute hides on both sides has no part in the difference."""
    rows = [(0, "compute", "a", "compute", 0, 4, 0), (0, "tp", "b", "compute", 4, 2, 0)]
    first = built([*rows, (0, "dp", "sum", "all_reduce", 1, 1, 64)])
    second = built([*rows, (0, "dp", "sum", "all_reduce", 1, 2, 64)])
    comparison = compare(first, second)
    assert not any(entry.difference_s for entry in comparison.contributions)
    assert comparison.step_times[1].overlap_s == 2.0
    (kind,) = [entry for entry in comparison.by_kind if entry.key == "all_reduce"]
    assert kind.error == pytest.approx(-0.5)


@settings(max_examples=examples(12))
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("", "pp=0", "pp=1")), st.sampled_from((1, 4))),
                unique_by=lambda row: row[0], max_size=5),
       st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("", "pp=0", "pp=1")), st.sampled_from((1, 4))),
                unique_by=lambda row: row[0], max_size=5))  # fmt: skip
def test_ranks_are_paired_symmetrically(first: list[tuple[int, str, int]], second: list[tuple[int, str, int]]) -> None:
    """No rank is lost, and swapping the sides swaps the pairs."""
    ours, theirs = ([RankInfo(*row) for row in sorted(rows)] for rows in (first, second))
    pairs = pair_ranks(ours, theirs)
    assert {pair.first for pair in pairs} - {None} == set(ours)
    assert {pair.second for pair in pairs} - {None} == set(theirs)
    assert {(pair.first, pair.second) for pair in pairs} == {(p.second, p.first) for p in pair_ranks(theirs, ours)}


def test_traces_of_other_ranks_are_paired_in_order() -> None:
    """Two profiles of one rank each compare, whatever the ranks' numbers."""
    (pair,) = pair_ranks([RankInfo(3, "")], [RankInfo(1, "")])
    assert (pair.first, pair.second) == (RankInfo(3, ""), RankInfo(1, ""))


TRACE_DIFF_CHANGES = {"added": 27, "deleted": 66, "increased": 15, "decreased": 9, "unchanged": 84}
TRACE_DIFF_US = (413947.0, 756807.0)
TRACE_DIFF_COUNTS = {
    "Memcpy DtoD (Device -> Device)": (15, 3840),
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": (15, 15),
    "volta_sgemm_128x32_nt": (0, 170),
    "volta_sgemm_32x128_tn": (0, 60),
}
"""How many names have more or fewer ops in the second trace, all ops' microseconds, and how often some ops ran.

From HolisticTraceAnalysis 0.5.0 with pandas 3.1.1, in an environment of its own, of ranks 3 and 1:

    steps = list(range(1009, 1014))
    TraceDiff.compare_traces(control, test, control_rank=3, test_rank=1, control_iteration=steps,
                             test_iteration=steps, device_type=DeviceType.GPU)

and ``TraceDiff.ops_diff`` with the same arguments. All 201 names then had the counts that are found here.
"""


def change(first: int, second: int) -> str:
    """Return what TraceDiff calls a change of the number of ops."""
    if not (first and second):
        return "deleted" if first else "added"
    return "unchanged" if first == second else "increased" if second > first else "decreased"


def test_ops_are_counted_as_by_trace_diff() -> None:
    """On the control and the test trace every name has the number and seconds of ops that TraceDiff finds."""
    control, test = (
        to_timeline(load(shared_trace(f"trace_diff_{name}.json.gz"), StepWindow())) for name in ("control", "test")
    )
    comparison = compare(control, test)
    counts: dict[str, list[int]] = {}
    for entry in comparison.contributions:
        names = entry.key.split(" | ")
        counts.setdefault(names[0], [0, 0])[0] += entry.num_first
        counts.setdefault(names[-1], [0, 0])[1] += entry.num_second
    del counts["idle"]
    changes = [change(*both) for both in counts.values()]
    assert {what: changes.count(what) for what in TRACE_DIFF_CHANGES} == TRACE_DIFF_CHANGES
    assert {name: tuple(counts[name]) for name in TRACE_DIFF_COUNTS} == TRACE_DIFF_COUNTS
    seconds = [sum(getattr(entry, key) for entry in comparison.by_kind) for key in ("first_s", "second_s")]
    assert [1e6 * spent_s for spent_s in seconds] == pytest.approx(TRACE_DIFF_US)
    unchanged = sum(min(both) for both in counts.values())
    assert comparison.alignment.by_name.sum() <= unchanged
    assert comparison.alignment.by_name.sum() > 0.9 * unchanged


@pytest.mark.parametrize("name", ["control", "test"])
def test_step_divides_as_the_breakdown_says(name: str) -> None:
    """On real traces compute, overlap and idle are those of the temporal breakdown."""
    trace = load(shared_trace(f"trace_diff_{name}.json.gz"), StepWindow())
    timeline = to_timeline(trace)
    step, _ = compare(timeline, timeline).step_times
    parts = break_down(trace.ranks[0].rows)
    assert step.compute_s == pytest.approx(parts.compute_s)
    assert step.communication_s == pytest.approx(parts.communication_s)
    assert step.overlap_s == pytest.approx(parts.overlap_s)
    assert step.idle_s == pytest.approx(parts.idle_s)
    assert np.isclose(step.exposed_memory_s, parts.non_compute_s - parts.exposed_communication_s)
