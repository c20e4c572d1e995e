import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.comparison.compare import compare
from traces.errors import TraceError
from traces.timeline import Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def changed(timeline: Timeline, change: Change, *, source: str = "executed") -> Timeline:
    """Return a timeline with every row put through ``change``; None drops the row."""
    builder = TimelineBuilder(source="executed" if source == "executed" else "simulated")
    for row in range(len(timeline)):
        values: dict[str, Any] | None = {
            key: getattr(timeline, key).at(row) for key in ("stream", "name", "kind", "group")
        }
        assert values is not None
        numbers = ("rank", "start_s", "end_s", "microbatch", "stage")
        values |= {key: getattr(timeline, key)[row].item() for key in numbers}
        values |= {"num_bytes": int(timeline.bytes[row]), "flop": float(timeline.flop[row])}
        values = change(values)
        if values is not None:
            builder.add(**values)
    for info in timeline.ranks:
        builder.add_rank(info.rank, info.role, info.num_ranks)
    return builder.build()


def test_a_timeline_equals_itself(make_timeline: MakeTimeline) -> None:
    """Equal timelines have every op in common, no mismatch, and no error."""
    comparison = compare(make_timeline(), make_timeline(source="executed"))
    assert comparison.same_work
    assert comparison.worst_error == 0.0
    assert len(comparison.alignment.first) == len(comparison.sides.second) == len(make_timeline())
    assert comparison.alignment.by_name.all()
    assert not any(entry.difference_s for entry in comparison.contributions)
    assert comparison.examples == ()


@given(st.floats(0.25, 4.0))
def test_makespan_error_is_the_relative_difference(scale: float) -> None:
    """A simulation that takes ``scale`` times as long is off by scale - 1, in total and per op."""
    real = _two_ops(1.0)
    comparison = compare(_two_ops(scale), real)
    assert comparison.makespan_error == pytest.approx(scale - 1.0)
    assert comparison.worst_error == pytest.approx(abs(scale - 1.0))
    assert all(totals.error == pytest.approx(scale - 1.0) for totals in comparison.by_op)


def _two_ops(scale: float) -> Timeline:
    builder = TimelineBuilder()
    builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=scale)
    builder.add(rank=0, stream="compute", name="b", kind="compute", start_s=scale, end_s=3 * scale)
    return builder.build()


def test_totals_add_up_per_op_kind_and_stream(make_timeline: MakeTimeline) -> None:
    """The seconds of both sides are the same whether summed by op, by kind or by stream."""
    simulated, real = make_timeline(scale=2.0), make_timeline(source="executed")
    comparison = compare(simulated, real)
    for totals in (comparison.by_op, comparison.by_kind, comparison.by_stream):
        assert sum(entry.first_s for entry in totals) == pytest.approx(sum(simulated.busy_s().values()))
        assert sum(entry.second_s for entry in totals) == pytest.approx(sum(real.busy_s().values()))
        assert sum(entry.num_first for entry in totals) == sum(entry.num_second for entry in totals) == len(real)
    by_kind = {entry.key: entry for entry in comparison.by_kind}
    assert (by_kind["compute"].first_s, by_kind["compute"].second_s) == pytest.approx((12.0, 6.0))


def test_a_step_without_a_gap_idles_for_no_time() -> None:
    """Where one op begins as another ends, idle and hidden time are exactly 0, and not what sums are rounded by."""
    for seed in range(20):  # without care 2 of these steps idle for 3e-18 s and 7e-18 s
        drawn = random.Random(seed)
        ends_s = np.cumsum([drawn.uniform(1e-4, 1e-2) for _ in range(drawn.randint(2, 12))]).tolist()
        builder = TimelineBuilder()
        for number, (start_s, end_s) in enumerate(pairwise([0.0, *ends_s])):
            kind, stream = ("all_reduce", "dp") if number % 2 else ("compute", "compute")
            builder.add(rank=0, stream=stream, name=f"{number}", kind=kind, start_s=start_s, end_s=end_s)
        timeline = builder.build()
        step, _ = compare(timeline, timeline).step_times
        assert (step.idle_s, step.overlap_s) == (0.0, 0.0)


def test_missing_and_extra_ops_are_named(make_timeline: MakeTimeline) -> None:
    """An op that only one side has is missing or extra, and counts as a full error."""
    simulated = make_timeline()
    real = changed(simulated, lambda row: None if row["kind"] == "all_reduce" and row["rank"] == 1 else row)
    comparison = compare(simulated, real)
    assert {what: count for what, count in comparison.mismatches.items() if count} == {"missing": 1}
    assert comparison.examples[0].name == "gradient_sync.0/sum_dp"
    assert comparison.examples[0].rank == 1
    assert comparison.worst_error >= 1.0
    assert compare(real, simulated).mismatches["extra"] == 1


def test_other_bytes_kind_or_stream_is_a_mismatch(make_timeline: MakeTimeline) -> None:
    """An op with other bytes, kind or stream is found with both values."""
    simulated = make_timeline()
    for key, value, what in (("num_bytes", 65, "bytes"), ("kind", "broadcast", "kind"), ("stream", "tp", "stream")):
        real = changed(
            simulated,
            lambda row, key=key, value=value: row | {key: value} if row["name"].startswith("recv_forward.2") else row,
        )
        comparison = compare(simulated, real)
        assert {name: count for name, count in comparison.mismatches.items() if count} == {what: 2}
        assert comparison.examples[0].second == str(value)
        assert not comparison.same_work


def test_ops_that_change_places_are_out_of_order(make_timeline: MakeTimeline) -> None:
    """Two micro-batches that swap on one stream of one rank are one change of order, with both ops named."""
    simulated = make_timeline()

    def swap(row: dict[str, Any]) -> dict[str, Any]:
        if row["rank"] == 2 and row["stream"] == "compute":
            row["microbatch"] = 1 - row["microbatch"]
        return row

    comparison = compare(simulated, changed(simulated, swap))
    assert comparison.mismatches["order"] == 1
    (example,) = comparison.examples
    assert (example.rank, example.stream, example.microbatch) == (2, "compute", 1)
    assert example.first == "after forward.2/layer2.qkv (micro-batch 0)"
    assert example.second == "before forward.2/layer2.qkv (micro-batch 0)"


@given(st.permutations(range(6)))
def test_order_differs_exactly_where_a_permutation_is_not_the_identity(order: list[int]) -> None:
    """Any other order of a stream's ops is found; the same order with other times is not."""
    simulated, real = TimelineBuilder(), TimelineBuilder()
    for place, op in enumerate(order):
        simulated.add(rank=0, stream="s", name=f"op{place}", kind="k", start_s=place, end_s=place + 1)
        real.add(rank=0, stream="s", name=f"op{op}", kind="k", start_s=3.0 * place, end_s=3.0 * place + 2)
    found = compare(simulated.build(), real.build()).mismatches["order"]
    assert (found > 0) == (order != sorted(order))


def test_ops_of_no_duration_have_no_order_of_their_own() -> None:
    """Ops that start and end at one instant are in order whichever came first in reality."""
    simulated, real = TimelineBuilder(), TimelineBuilder()
    for place in range(4):
        simulated.add(rank=0, stream="s", name=f"op{place}", kind="k", start_s=0.0, end_s=0.0)
        real.add(rank=0, stream="s", name=f"op{3 - place}", kind="k", start_s=place, end_s=place + 1)
    assert compare(simulated.build(), real.build()).same_work


def test_repeated_ops_are_matched_by_occurrence() -> None:
    """The n-th op of one name meets the n-th of the same name."""
    simulated, real = TimelineBuilder(), TimelineBuilder()
    for place in range(3):
        simulated.add(rank=0, stream="s", name="again", kind="k", start_s=place, end_s=place + 1)
        real.add(rank=0, stream="s", name="again", kind="k", start_s=10 * place, end_s=10 * place + 1 + place)
    comparison = compare(simulated.build(), real.build())
    assert comparison.same_work
    assert comparison.alignment.second.tolist() == [0, 1, 2]
    assert comparison.sides.second.end_s[comparison.alignment.second[2]] == 23.0


def test_folded_ranks_stand_for_the_ranks_of_their_role() -> None:
    """A simulated rank is held against every real rank of its role, and each one's mismatches are found."""
    simulated, real = TimelineBuilder(), TimelineBuilder(source="executed")
    for stage in range(2):
        simulated.add_rank(2 * stage, f"pp={stage}", 2)
        simulated.add(rank=2 * stage, stream="s", name=f"f{stage}", kind="k", start_s=0.0, end_s=1.0, num_bytes=8)
        for replica in range(2):
            rank = 2 * stage + replica
            num_bytes = 9 if rank == 3 else 8
            real.add_rank(rank, f"pp={stage}")
            real.add(rank=rank, stream="s", name=f"f{stage}", kind="k", start_s=0.0, end_s=2.0, num_bytes=num_bytes)
    comparison = compare(simulated.build(), real.build())
    assert len(comparison.alignment.first) == len(comparison.sides.first) == 4
    assert {what: count for what, count in comparison.mismatches.items() if count} == {"bytes": 1}
    assert comparison.examples[0].rank == 3


def test_different_plans_have_nothing_in_common(make_timeline: MakeTimeline) -> None:
    """Ops of other names, kinds and sizes are all missing and extra, and say so without failing."""
    real = changed(make_timeline(), lambda row: row | {"name": "other", "kind": f"other {row['kind']}", "num_bytes": 7})
    comparison = compare(make_timeline(), real)
    assert len(comparison.alignment.first) == 0
    assert comparison.mismatches["missing"] == len(make_timeline())
    assert comparison.mismatches["extra"] == len(real)
    assert comparison.by_op == ()


def test_timelines_of_other_detail_and_empty_ones_are_refused(make_timeline: MakeTimeline) -> None:
    """A row per task does not compare with a row per op, nor anything with nothing."""
    tasks = TimelineBuilder(detail="task")
    tasks.add(rank=0, stream="compute", name="forward.0", kind="forward", start_s=0.0, end_s=1.0)
    with pytest.raises(TraceError, match="row per op, the second a row per task"):
        compare(make_timeline(), tasks.build())
    with pytest.raises(TraceError, match="the second timeline has no ops"):
        compare(make_timeline(), TimelineBuilder().build())


def test_large_timelines_are_aligned_completely() -> None:
    """A timeline of 200,000 ops in random order is aligned completely."""
    rng = np.random.default_rng(0)
    builders = TimelineBuilder(), TimelineBuilder(source="executed")
    starts = np.arange(200_000, dtype=np.float64)
    for builder in builders:
        order = rng.permutation(len(starts))
        builder.extend(
            rank=(order % 4), stream="s", name=(order % 50, [f"op{i}" for i in range(50)]), kind="k",
            start_s=starts[order], end_s=starts[order] + 1, microbatch=order // 1000,
        )  # fmt: skip
    comparison = compare(builders[0].build(), builders[1].build())
    assert comparison.same_work
    assert len(comparison.alignment.second) == len(starts)


def test_rounding_reads_as_equal() -> None:
    """Times that differ by what sums of floating point numbers lose differ by nothing, in long steps too."""
    for length_s in (1e-3, 1.0, 1e4):
        for noise_s in (2.2e-16, 1e-12 * length_s):
            builder = TimelineBuilder()
            builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=length_s + noise_s)
            other = TimelineBuilder()
            other.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=length_s)
            comparison = compare(builder.build(), other.build())
            assert comparison.makespan_error == 0.0
            assert [entry.error for entry in comparison.by_kind] == [0.0]
            assert comparison.explained.ops == ()


def test_an_op_of_every_layer_is_one_entry() -> None:
    """What explains a difference names an op that repeats in every layer once, with all its runs and seconds."""

    def layers(slow: float) -> Timeline:
        builder = TimelineBuilder()
        names = [f"forward.0/layer{layer}.{op}" for layer in range(12) for op in ("qkv", "fc1")]
        names += ["forward.0/embedding"]
        for place, name in enumerate(names):
            took = slow if "qkv" in name or "embedding" in name else 1.0
            builder.add(
                rank=0, stream="compute", name=name, kind="compute", start_s=3.0 * place, end_s=3 * place + took
            )
        return builder.build()

    comparison = compare(layers(2.0), layers(1.0))
    [(merged, share), (single, rest)] = comparison.explained.ops
    assert (merged.key, merged.num_first, merged.num_second) == ("forward.0/layer*.qkv", 12, 12)
    assert (merged.first_s, merged.second_s) == (24.0, 12.0)
    assert (single.key, single.num_first) == ("forward.0/embedding", 1)
    assert share + rest + comparison.explained.idle[1] == pytest.approx(1.0)
    assert comparison.explained.num_others == 0
