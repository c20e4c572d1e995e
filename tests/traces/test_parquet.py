import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import traces.parquet as parquet_module
from traces.errors import TraceError
from traces.parquet import FILE_COLUMNS, SCHEMA_NAME, read_timeline, write_timeline
from traces.timeline import COLUMNS, Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]


def test_timeline_survives_the_file(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Rows, ranks, memory, source and detail read back as written."""
    timeline = make_timeline(source="executed", stands_for=4)
    write_timeline(timeline, tmp_path / "timeline.parquet")
    back = read_timeline(tmp_path / "timeline.parquet")
    assert (back.ranks, back.source, back.detail) == (timeline.ranks, "executed", "op")
    for key in ("rank", "start_s", "end_s", "microbatch", "stage", "bytes", "flop"):
        np.testing.assert_array_equal(getattr(back, key), getattr(timeline, key))
    for key in ("stream", "name", "kind", "group"):
        assert [getattr(back, key).at(i) for i in range(len(back))] == [
            getattr(timeline, key).at(i) for i in range(len(timeline))
        ]
    for key in ("rank", "time_s", "bytes"):
        np.testing.assert_array_equal(getattr(back.memory, key), getattr(timeline.memory, key))
    for key in ("send", "recv", "member", "collective"):
        np.testing.assert_array_equal(getattr(back.messages, key), getattr(timeline.messages, key))


def test_pandas_reads_the_documented_columns(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """pandas sees one row per op and exactly the documented columns."""
    timeline = make_timeline()
    write_timeline(timeline, tmp_path / "timeline.parquet")
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    documented = {"rank", "stream", "name", "kind", "start_s", "end_s", "microbatch", "stage", "bytes", "flop", "group"}
    repetition = {"repeats", "period_s", "period_microbatches"}
    assert set(frame.columns) == {*documented, *repetition, "transfer"} == set(FILE_COLUMNS)
    assert documented == set(COLUMNS)
    shared = frame[frame.transfer >= 0].groupby("transfer").kind.agg(list).tolist()
    assert sorted(shared) == [["all_reduce"] * 3, *[["send", "recv"]] * 4]
    assert len(frame) == len(timeline)
    assert frame.loc[frame.kind == "all_reduce", "group"].tolist() == ["dp"] * 3


def test_identical_timelines_give_identical_bytes(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Two writes of equal timelines are equal byte by byte, and nothing else is left in the folder."""
    for name in ("a", "b"):
        write_timeline(make_timeline(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]


def test_many_row_groups_read_back_whole(
    make_timeline: MakeTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline longer than a row group, and an empty one, read back with every row."""
    monkeypatch.setattr(parquet_module, "ROWS_PER_GROUP", 4)
    write_timeline(make_timeline(), tmp_path / "long.parquet")
    assert pq.ParquetFile(tmp_path / "long.parquet").num_row_groups > 1
    assert len(read_timeline(tmp_path / "long.parquet")) == len(make_timeline())
    write_timeline(TimelineBuilder().build(), tmp_path / "empty.parquet")
    assert len(read_timeline(tmp_path / "empty.parquet")) == 0


def test_long_memory_curves_are_thinned_and_keep_their_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit of points the file holds fewer, and the same peak."""
    monkeypatch.setattr(parquet_module, "MAX_MEMORY_POINTS", 20)
    builder = TimelineBuilder()
    held = np.random.default_rng(0).integers(0, 10**9, 1000)
    builder.add_memory(0, np.arange(1000.0), held)
    write_timeline(builder.build(), tmp_path / "t.parquet")
    memory = read_timeline(tmp_path / "t.parquet").memory
    assert len(memory) <= 20
    assert memory.peak_bytes(0) == held.max()


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    """A missing file, a directory, text, and some other Parquet file: file, rule and remedy each."""
    text, foreign = tmp_path / "text.parquet", tmp_path / "foreign.parquet"
    text.write_text("rank,stream\n", encoding="utf-8")
    pq.write_table(pa.table({"rank": [1]}), foreign)
    for path, rule in (
        (tmp_path / "none.parquet", "no such file"),
        (tmp_path, "directory"),
        (text, "not a Parquet file, or only part"),
        (foreign, "no timeline"),
    ):
        with pytest.raises(TraceError, match=rule) as refusal:
            read_timeline(path)
        assert str(path) in str(refusal.value)
        assert "simulate" in refusal.value.remedy


def test_files_cut_anywhere_are_refused(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """No prefix of a timeline file reads as a timeline."""
    path = tmp_path / "timeline.parquet"
    write_timeline(make_timeline(), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError):
            read_timeline(path)


@pytest.mark.parametrize(
    ("column", "values", "rule"),
    [
        ("end_s", [float("nan")], "finite time"),
        ("flop", [float("nan")], "finite amount"),
        ("bytes", [-1], "finite amount"),
        ("end_s", [-1.0], "end after it starts"),
        ("start_s", [None], "every row needs a value"),
        ("bytes", ["many"], "must be int64"),
        ("rank", [7], "rank 7 is missing in the metadata"),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, column: str, values: list[object], rule: str) -> None:
    """Times that cannot be, empty cells and wrong types name the column."""
    builder = TimelineBuilder()
    builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=1.0)
    path = tmp_path / "timeline.parquet"
    write_timeline(builder.build(), path)
    table = pq.read_table(path)
    index = table.column_names.index(column)
    kind = pa.string() if isinstance(values[0], str) else table.schema.field(column).type
    changed = table.set_column(index, pa.field(column, kind), pa.array(values, kind))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(TraceError, match=rule):
        read_timeline(path)


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        (json.dumps({"schema": "x" * 5000}), "the schema is 'xxx"),
        (json.dumps({"schema": SCHEMA_NAME}), "damaged"),
        (json.dumps({"schema": SCHEMA_NAME, "source": "", "detail": "op", "ranks": 5}), "damaged"),
    ],
)
def test_damaged_metadata_is_refused(tmp_path: Path, metadata: str, rule: str) -> None:
    """Metadata that is no JSON, nests without end or lacks its keys is an error of the file, in few words."""
    path = tmp_path / "timeline.parquet"
    write_timeline(TimelineBuilder().build(), path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"meshtwin": metadata.encode()}), path)
    with pytest.raises(TraceError, match=rule) as refusal:
        read_timeline(path)
    assert len(str(refusal.value)) < 1000


def test_column_name_that_is_no_text_is_refused(make_timeline: MakeTimeline, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 where the file names its columns make it no timeline."""
    path = tmp_path / "timeline.parquet"
    write_timeline(make_timeline(), path)
    path.write_bytes(path.read_bytes().replace(b"microbatch", b"microb\xd6tch"))
    with pytest.raises(TraceError, match="not a Parquet file, or only part"):
        read_timeline(path)


def test_word_that_is_not_in_the_dictionary_is_refused(
    make_timeline: MakeTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code that names no word makes the file a damaged one, whatever the reader makes of it."""
    path = tmp_path / "timeline.parquet"
    write_timeline(make_timeline(), path)
    monkeypatch.setattr("traces.parquet._from_arrow", lambda column: (np.full(len(column), 99), ["compute"]))
    with pytest.raises(TraceError, match="not a Parquet file, or only part"):
        read_timeline(path)


def test_memory_curve_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed array is unpacked only as far as any that is written."""
    builder = TimelineBuilder()
    builder.add_rank(0, "all", 1)
    builder.add_memory(0, np.arange(1000.0), np.arange(1000))
    write_timeline(builder.build(), tmp_path / "t.parquet")
    monkeypatch.setattr("traces.parquet.MAX_PACKED_BYTES", 100)
    with pytest.raises(TraceError, match="an array is too large"):
        read_timeline(tmp_path / "t.parquet")


def test_pipe_is_refused(tmp_path: Path) -> None:
    """A named pipe is no file that could be read anywhere but from its start."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="this is not a file"):
        read_timeline(tmp_path / "pipe")
