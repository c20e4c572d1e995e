from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.errors import StreamError
from traces.timeline import MemoryCurve, Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]


def test_rows_are_sorted_by_rank_and_time_and_messages_follow_them(make_timeline: MakeTimeline) -> None:
    """Rows come out by rank and start whatever the order of adding, and messages still join the same ops."""
    timeline = make_timeline()
    assert (np.diff(timeline.rank) >= 0).all()
    for rank in range(3):
        assert (np.diff(timeline.start_s[timeline.select(rank=rank)]) >= 0).all()
    for send, recv in zip(timeline.messages.send, timeline.messages.recv, strict=True):
        assert timeline.kind.at(send) == "send"
        assert timeline.kind.at(recv) == "recv"
        assert timeline.end_s[send] == timeline.end_s[recv]
    assert [timeline.kind.at(row) for row in timeline.messages.member] == ["all_reduce"] * 3


def test_select_finds_the_rows_of_rank_stream_and_kind(make_timeline: MakeTimeline) -> None:
    """Each criterion narrows the rows; words and ranks that do not occur have none."""
    timeline = make_timeline()
    assert len(timeline.select()) == len(timeline)
    assert [timeline.name.at(row) for row in timeline.select(rank=1, stream="compute")] == ["forward.1/layer1.qkv"] * 2
    assert len(timeline.select(kind="all_reduce")) == 3
    assert len(timeline.select(stream="no such")) == 0
    assert len(timeline.select(rank=99)) == 0


def test_busy_time_is_summed_per_rank_and_stream(make_timeline: MakeTimeline) -> None:
    """Two forward ops of one second make two busy seconds; streams without ops are absent."""
    busy_s = make_timeline().busy_s()
    assert busy_s[0, "compute"] == pytest.approx(2.0)
    assert busy_s[1, "pp_recv"] == pytest.approx(1.0)
    assert (0, "pp_recv") not in busy_s


def test_duration_spans_first_start_to_last_end(make_timeline: MakeTimeline) -> None:
    """The step lasts from the first start to the last end; an empty timeline lasts no time."""
    assert make_timeline().duration_s == pytest.approx(11.0)
    empty = TimelineBuilder().build()
    assert empty.duration_s == 0.0
    assert empty.busy_s() == {}
    empty.check_streams()


def test_overlap_on_a_stream_is_refused_by_name() -> None:
    """The message names rank, stream and both ops; other streams and ranks may overlap."""
    builder = TimelineBuilder()
    builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=1.0)
    builder.add(rank=0, stream="dp", name="b", kind="all_reduce", start_s=0.5, end_s=1.5)
    builder.add(rank=1, stream="compute", name="c", kind="compute", start_s=0.5, end_s=1.5)
    builder.build().check_streams()
    builder.add(rank=0, stream="compute", name="late", kind="compute", start_s=0.75, end_s=2.0, microbatch=3)
    with pytest.raises(StreamError, match=r"rank 0, stream compute: a \(0 s to 1 s\) and late \(micro-batch 3"):
        builder.build().check_streams()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("xy"), st.floats(0, 9), st.floats(0.01, 2)),
        min_size=1,
        max_size=30,
    )
)
def test_check_streams_agrees_with_pairwise_comparison(ops: list[tuple[int, str, float, float]]) -> None:
    """A timeline is refused exactly where some pair of ops on one stream of one rank overlaps."""
    builder = TimelineBuilder()
    for index, (rank, stream, start_s, length_s) in enumerate(ops):
        builder.add(
            rank=rank, stream=stream, name=f"op{index}", kind="compute", start_s=start_s, end_s=start_s + length_s
        )
    overlapping = any(
        one[:2] == other[:2] and one[2] < other[2] + other[3] and other[2] < one[2] + one[3]
        for index, one in enumerate(ops)
        for other in ops[:index]
    )
    timeline = builder.build()
    try:
        timeline.check_streams(tolerance_s=0.0)
        refused = False
    except StreamError:
        refused = True
    assert refused == overlapping


def test_extend_equals_adding_one_by_one(make_timeline: MakeTimeline) -> None:
    """Columns of codes or of words give the same timeline as single rows."""
    timeline = make_timeline()
    coded, worded = TimelineBuilder(), TimelineBuilder()
    numbers = {key: getattr(timeline, key) for key in ("rank", "start_s", "end_s", "microbatch", "stage", "flop")}
    words = {key: getattr(timeline, key) for key in ("stream", "name", "kind", "group")}
    coded.extend(
        num_bytes=timeline.bytes, **numbers, **{key: (column.codes, column.values) for key, column in words.items()}
    )
    worded.extend(
        num_bytes=timeline.bytes,
        **numbers,
        **{key: [column.at(row) for row in range(len(timeline))] for key, column in words.items()},
    )
    for other in (coded.build(), worded.build()):
        for key, column in words.items():
            found = getattr(other, key)
            assert [found.at(i) for i in range(len(other))] == [column.at(i) for i in range(len(timeline))]
        for key, values in numbers.items():
            np.testing.assert_array_equal(getattr(other, key), values)


def test_extend_refuses_columns_of_other_lengths() -> None:
    """A column that is neither one value nor as long as the starts is an error, and adds nothing."""
    builder = TimelineBuilder()
    with pytest.raises(ValueError, match="broadcast"):
        builder.extend(rank=0, stream="s", name="n", kind="k", start_s=[0.0, 1.0, 2.0], end_s=[1.0, 2.0])
    assert len(builder.build()) == 0


def test_ten_million_rows_take_no_object_per_row() -> None:
    """A million rows take at most 64 bytes each, and building them is quick."""
    builder = TimelineBuilder()
    starts = np.arange(1_000_000, dtype=np.float64)
    builder.extend(
        rank=0, stream="compute", name=(np.zeros(len(starts), dtype=np.int32), ["op"]), kind="compute",
        start_s=starts, end_s=starts + 1,
    )  # fmt: skip
    timeline = builder.build()
    columns = [timeline.rank, timeline.start_s, timeline.end_s, timeline.microbatch, timeline.stage, timeline.bytes]
    columns += [timeline.flop, *(words.codes for words in (timeline.stream, timeline.name, timeline.kind))]
    columns.append(timeline.group.codes)
    assert sum(column.nbytes for column in columns) <= 64 * len(timeline)
    timeline.check_streams()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.integers(3, 50))
def test_thinned_memory_keeps_peak_and_last_value(held: list[int], max_points: int) -> None:
    """Thinning keeps at most the points asked for, the peak, the first and the last."""
    curve = MemoryCurve(
        np.zeros(len(held), np.int32), np.arange(len(held), dtype=np.float64), np.array(held, dtype=np.int64)
    )
    thinned = curve.thinned(max_points)
    assert len(thinned) <= max(max_points, 3)
    assert thinned.peak_bytes(0) == max(held)
    assert thinned.bytes[-1] == held[-1]
    assert thinned.bytes[0] == held[0]


def test_memory_of_one_rank_is_found_among_many(make_timeline: MakeTimeline) -> None:
    """Each rank has its own curve; a rank without one holds nothing."""
    memory = make_timeline().memory
    times_s, held = memory.of(1)
    assert times_s.tolist() == [0.0, 2.0, 3.0]
    assert held.tolist() == [100, 300, 50]
    assert memory.peak_bytes(2) == 400
    assert memory.peak_bytes(17) == 0


def test_ranks_name_folded_classes_as_such() -> None:
    """A rank that stands for several says so; one that stands for itself has its number."""
    builder = TimelineBuilder()
    builder.add_rank(0, "pp=0", 192)
    builder.add_rank(7, "pp=1")
    timeline = builder.build()
    assert [info.label for info in timeline.ranks] == ["pp=0 (stands for 192 ranks)", "rank 7 (pp=1)"]
