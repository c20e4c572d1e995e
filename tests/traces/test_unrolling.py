"""Folded timelines in files: what is written, what is drawn, and what is read again."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import traces.passes as passes_module
from traces.comparison.compare import compare
from traces.errors import TraceError
from traces.frame import frame_of
from traces.parquet import read_timeline, write_timeline
from traces.perfetto import write_perfetto
from traces.timeline import NO_INDEX, Period, Timeline, TimelineBuilder
from traces.unrolling import num_unrolled, unrolled

COUNT = 40
PERIOD = Period(begin_s=2.0, length_s=3.0, count=COUNT, microbatches=1)


def folded() -> Timeline:
    """Return two ranks: each sends what it computed; the message of a pass is received in the next one."""
    builder = TimelineBuilder()
    builder.period = PERIOD
    later_s, end = PERIOD.later_s, COUNT + 1

    def op(rank: int, name: str, start_s: float, lasts_s: float, microbatch: int, stream: str = "compute") -> int:
        kind = stream if stream != "compute" else "compute"
        return builder.add(
            rank=rank, stream=stream, name=name, kind=kind, start_s=start_s, end_s=start_s + lasts_s,
            microbatch=microbatch, stage=rank, num_bytes=8, flop=2.0,
        )  # fmt: skip

    op(0, "forward", 0.0, 1.0, 0)
    sends = [op(0, "send", 1.0, 0.5, 0, "send")]
    op(0, "forward", 2.0, 1.0, 1)
    sends.append(op(0, "send", 4.0, 0.5, 1, "send"))
    receives = [op(1, "recv", 2.5, 0.5, 0, "recv")]
    op(1, "forward", 3.0, 2.5, 0)
    receives.append(op(1, "recv", later_s + 5.5, 0.5, end - 1, "recv"))
    op(1, "forward", later_s + 6.0, 2.5, end - 1)
    op(0, "optimizer", later_s + 6.0, 1.0, NO_INDEX)
    for send, receive in zip(sends, receives, strict=True):
        builder.add_message(send, receive)
    builder.add_memory(0, [0.0, 2.0, 4.0, later_s + 6.0], [1, 2, 3, 4])
    builder.add_rank(0, "pp=0")
    builder.add_rank(1, "pp=1")
    return builder.build()


def test_every_pass_has_its_rows() -> None:
    """Ops of the period come again a period later, for the next micro-batch; other ops stay single."""
    table = unrolled(folded())
    assert len(table) == num_unrolled(folded()) == 5 + 4 * COUNT
    rows = table.select(rank=0, stream="compute")
    assert table.start_s[rows].tolist() == [0.0, *(2.0 + 3.0 * k for k in range(COUNT)), 3.0 * COUNT + 3.0]
    assert table.microbatch[rows].tolist() == [*range(COUNT + 1), NO_INDEX]
    times_s, held = table.memory.of(0)
    assert times_s.tolist() == [0.0, *(t + 3.0 * k for k in range(COUNT) for t in (2.0, 4.0)), 3.0 * COUNT + 3.0]
    assert held.tolist() == [1, *[2, 3] * COUNT, 4]
    assert unrolled(table) is table


def test_messages_between_passes_are_found_again() -> None:
    """Each pass receives what the pass before sent: the same micro-batch at both ends."""
    table = unrolled(folded())
    found = table.messages
    assert table.microbatch[found.send].tolist() == table.microbatch[found.recv].tolist() == list(range(COUNT + 1))


def test_totals_count_the_passes() -> None:
    """Busy seconds are those of all passes."""
    assert folded().busy_s() == pytest.approx(unrolled(folded()).busy_s())
    assert folded().duration_s == unrolled(folded()).duration_s


def test_the_file_holds_the_period_once(tmp_path: Path) -> None:
    """Rows and period read back as written, and compare with the timeline that has all passes."""
    path = tmp_path / "timeline.parquet"
    write_timeline(folded(), path)
    back = read_timeline(path)
    assert (len(back), back.period) == (len(folded()), PERIOD)
    assert compare(back, unrolled(folded())).same_work


def test_pandas_writes_the_passes_out_as_documented(tmp_path: Path) -> None:
    """The lines of docs/results.md give the ops of all passes, and weighted sums."""
    write_timeline(folded(), tmp_path / "timeline.parquet")
    rows = pd.read_parquet(tmp_path / "timeline.parquet")
    busy_s = ((rows.end_s - rows.start_s) * rows.repeats).groupby(rows.kind, observed=True).sum()
    ops = rows.loc[rows.index.repeat(rows.repeats)]
    number = ops.groupby(level=0).cumcount()
    ops["start_s"] += number * ops.period_s
    ops["end_s"] += number * ops.period_s
    ops["microbatch"] += (number * ops.period_microbatches).where(ops.microbatch >= 0, 0)
    every = frame_of(folded())
    assert busy_s.to_dict() == pytest.approx(every.groupby("kind", observed=True).duration_s.sum().to_dict())
    ops = ops.sort_values(["rank", "start_s", "end_s"])
    for column in ("rank", "name", "start_s", "end_s"):
        assert ops[column].tolist() == every[column].tolist(), column
    assert ops.microbatch.tolist() == every.microbatch.fillna(NO_INDEX).tolist()


@pytest.mark.parametrize(
    "damage",
    [
        {"count": 1}, {"count": 2**40}, {"length_s": 0.0}, {"begin_s": float("inf")}, {"microbatches": -1},
        {"microbatches": 2**30}, {"length_s": "long"}, {"length_s": 1e308},
    ],
    ids=str,
)  # fmt: skip
def test_a_period_that_no_step_has_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    """A file whose period cannot be one is damaged, and says so."""
    with pytest.raises(TraceError, match="metadata of this timeline is damaged"):
        read_timeline(with_period(tmp_path, damage))


def test_rows_that_repeat_otherwise_than_the_period_are_refused(tmp_path: Path) -> None:
    """A file whose rows and period disagree names the column."""
    with pytest.raises(TraceError, match="repeated rows start outside the period") as refused:
        read_timeline(with_period(tmp_path, {"count": COUNT + 1}))
    assert refused.value.key == "repeats"


def with_period(folder: Path, changes: dict[str, Any]) -> Path:
    """Return a file whose metadata say another period."""
    path = folder / "timeline.parquet"
    write_timeline(folded(), path)
    table = pq.read_table(path)
    content = json.loads(table.schema.metadata[b"meshtwin"])
    content["period"] |= changes
    pq.write_table(table.replace_schema_metadata({b"meshtwin": json.dumps(content).encode()}), path)
    return path


def test_what_is_too_long_to_compare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as often as they repeat; nothing is written out before."""
    monkeypatch.setattr("traces.comparison.compare.MAX_ROWS", num_unrolled(folded()) - 1)
    with pytest.raises(TraceError, match="with all that it repeats"):
        compare(folded(), folded())


# --- pictures ----------------------------------------------------------------------------------------------


def drawn(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    """Return the events of a Perfetto file."""
    write_perfetto(timeline, folder / "timeline.json.gz")
    content = json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def ops_of(events: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Return the ops that are drawn, without slices about passes."""
    return {(e["pid"], e["tid"], e["name"], e["ts"]) for e in events if e["ph"] == "X" and e["cat"] != "passes"}


def test_short_steps_are_drawn_whole(tmp_path: Path) -> None:
    """Where all passes have few rows, the picture has them all, and a slice per pass."""
    events = drawn(folded(), tmp_path)
    assert ops_of(events) == ops_of(drawn(unrolled(folded()), tmp_path))
    names = [event["name"] for event in events if event["ph"] == "X" and event["cat"] == "passes"]
    assert names == [f"pass {number} of {COUNT}" for number in range(1, COUNT + 1)]


def test_long_steps_show_first_middle_and_last_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op that is drawn is at its time in the step; the gaps are named on every track, and counted."""
    monkeypatch.setattr(passes_module, "MAX_DRAWN", 20)
    events = drawn(folded(), tmp_path)
    every = ops_of(drawn_whole(tmp_path, monkeypatch))
    assert ops_of(events) < every
    ends = {event["ts"] + event["dur"] for event in events if event["ph"] == "X"}
    assert max(ends) == pytest.approx(1e6 * folded().duration_s)
    about = [event for event in events if event["ph"] == "X" and event["cat"] == "passes"]
    process = max(event["pid"] for event in about)
    words = [event["name"] for event in sorted(about, key=lambda e: e["ts"]) if event["pid"] == process]
    assert words == [
        "pass 1 of 40", "pass 2 of 40", "passes 3 to 19, not drawn", "pass 20 of 40", "pass 21 of 40",
        "passes 22 to 38, not drawn", "pass 39 of 40", "pass 40 of 40",
    ]  # fmt: skip
    counted = [
        (e["ts"] / 1e6, e["args"]["passes"]) for e in events if e["name"] == "passes not drawn" and e["ph"] == "C"
    ]
    assert counted == [(0.0, 0), (8.0, 17), (59.0, 0), (65.0, 17), (116.0, 0)]
    on_tracks = [event for event in about if event["pid"] != process]
    tracks = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in on_tracks} == tracks - {(process, 0)}
    assert all(event["name"] == "17 passes not drawn" for event in on_tracks)


def drawn_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the events of the timeline with all passes."""
    with monkeypatch.context() as patch:
        patch.setattr(passes_module, "MAX_DRAWN", 10**6)
        return drawn(unrolled(folded()), folder)


def test_slices_of_one_track_never_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice of a gap begins when the last op before it is over, and ends when the next one begins."""
    monkeypatch.setattr(passes_module, "MAX_DRAWN", 20)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in drawn(folded(), tmp_path):
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        starts, ends = np.array(sorted(spans)).T
        assert (starts[1:] >= ends[:-1] - 1e-3).all()


MakeTimeline = Callable[..., Timeline]


def test_a_timeline_without_a_period_is_written_as_it_is(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """No process of passes is drawn, and every row stands for itself."""
    assert not [e for e in drawn(make_timeline(), tmp_path) if "pass" in e["name"]]
    write_timeline(make_timeline(), tmp_path / "timeline.parquet")
    assert read_timeline(tmp_path / "timeline.parquet").period is None
    rows = pd.read_parquet(tmp_path / "timeline.parquet")
    assert set(rows.repeats) == {1}
    assert set(rows.period_s) == {0.0}
