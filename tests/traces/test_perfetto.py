import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import traces.perfetto as perfetto_module
from traces.perfetto import write_perfetto
from traces.timeline import Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]


def written(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    """Return the events of a timeline's file."""
    write_perfetto(timeline, folder / "timeline.json.gz")
    content = json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def test_every_op_is_one_slice_with_its_times(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Slices have the ops' names, kinds, tracks, and times in microseconds."""
    timeline = make_timeline()
    slices = [event for event in written(timeline, tmp_path) if event["ph"] == "X"]
    assert len(slices) == len(timeline)
    for row, event in enumerate(slices):
        assert (event["name"], event["cat"]) == (timeline.name.at(row), timeline.kind.at(row))
        assert event["pid"] == timeline.rank[row]
        assert event["ts"] == pytest.approx(1e6 * timeline.start_s[row])
        assert event["dur"] == pytest.approx(1e6 * (timeline.end_s[row] - timeline.start_s[row]))
        assert event["args"]["bytes"] == timeline.bytes[row]


def test_processes_and_tracks_are_named(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Each rank is a process, named as a folded class where it stands for several; compute is its first track."""
    events = written(make_timeline(stands_for=192), tmp_path)
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {rank: f"pp={rank} (stands for 192 ranks)" for rank in range(3)}
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks[1, 0] == "compute"
    assert {name for (pid, _), name in tracks.items() if pid == 1} == {"compute", "dp", "pp_recv", "pp_send"}


def test_arrows_join_the_ops_that_they_name(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Each arrow's ends lie inside a slice of their track: a send, its receive; all members of a collective."""
    events = written(make_timeline(), tmp_path)
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            ends[event["id"]].append(event)
    kinds = []
    for chain in ends.values():
        assert [event["ph"] for event in chain] == ["s", *["t"] * (len(chain) - 2), "f"]
        assert [event["ts"] for event in chain] == sorted(event["ts"] for event in chain)
        touched = [
            slice_["cat"]
            for event in chain
            for slice_ in events
            if slice_["ph"] == "X"
            and (slice_["pid"], slice_["tid"]) == (event["pid"], event["tid"])
            and slice_["ts"] <= event["ts"] <= slice_["ts"] + slice_["dur"]
        ]
        kinds.append(tuple(touched))
    assert sorted(kinds) == [("all_reduce",) * 3, *[("send", "recv")] * 4]


def test_a_row_may_take_part_in_any_number_of_arrows(tmp_path: Path) -> None:
    """A send that stands for many messages has an arrow to each receive, more than the timeline has rows."""
    builder = TimelineBuilder()
    rows = [builder.add(rank=0, stream=kind, name=kind, kind=kind, start_s=0.0, end_s=1.0) for kind in ("send", "recv")]
    for _ in range(8):
        builder.add_message(*rows)
    begun = [event["id"] for event in written(builder.build(), tmp_path) if event["ph"] == "s"]
    assert len(set(begun)) == len(begun) == 8


def test_memory_is_a_counter(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Every step of a memory curve is one counter event with the bytes held."""
    timeline = make_timeline()
    counters = [event for event in written(timeline, tmp_path) if event["ph"] == "C"]
    assert [event["args"]["bytes"] for event in counters] == timeline.memory.bytes.tolist()


def test_bytes_are_identical_and_chunks_do_not_show(
    make_timeline: MakeTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes are equal byte by byte; the size of chunks changes nothing in the content."""
    for name in ("a", "b"):
        write_perfetto(make_timeline(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    monkeypatch.setattr(perfetto_module, "ROWS_PER_CHUNK", 3)
    write_perfetto(make_timeline(), tmp_path / "c")
    assert gzip.decompress((tmp_path / "c").read_bytes()) == gzip.decompress((tmp_path / "a").read_bytes())


def test_names_with_quotes_and_empty_timelines_are_valid_json(tmp_path: Path) -> None:
    """Names are escaped, and a timeline without rows is a valid file without events."""
    assert written(TimelineBuilder().build(), tmp_path) == []
    builder = TimelineBuilder()
    builder.add(rank=0, stream='a"b', name="x\\\n", kind="compute", start_s=0.0, end_s=1e-9)
    assert [event["name"] for event in written(builder.build(), tmp_path) if event["ph"] == "X"] == ["x\\\n"]
