"""Traces that are damaged, incomplete or do not belong together are refused in words, or used with a count."""

import gzip
import json
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.kineto_traces import (
    ALL_REDUCE,
    activity,
    all_reduce,
    annotation,
    document,
    launch,
    memory,
    shared_trace,
    texts_of,
    write,
)
from traces.errors import TraceError
from traces.kineto.document import Source
from traces.kineto.rank import StepWindow
from traces.kineto.read import read_rank
from traces.kineto.trace import load, to_timeline

GOOD = activity("gemm", 100, 10, correlation=1)


def changed(**changes: object) -> dict:
    """Return a kernel with other fields; None removes one."""
    return {key: value for key, value in (GOOD | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"", "the file is empty"),
        ("a.json", b"  \n ", "the file is empty"),
        ("a.json", b"not json", "this is not JSON"),
        ("a.json", b'{"traceEvents": [\n{"ph": "X",', "the JSON ends in the middle"),
        ("a.json", b'{"traceEvents": [\n{"ph": nan}]}', "this is not JSON"),
        ("a.json", b'{"traceEvents": ["\xff\xfe"]}', "this is JSON, but no trace|this is not JSON"),
        ("a.json", b"[1, 2]", "no trace of the PyTorch profiler"),
        ("a.json", b'{"traceEvents": {"a": 1}}', "no trace of the PyTorch profiler"),
        ("a.json", b'{"traceEvents": [17]}', "no trace of the PyTorch profiler"),
        ("a.json", b'{"schemaVersion": 1}', "there is no traceEvents"),
        ("a.json", b'{"traceEvents": []}', "traceEvents is empty"),
        ("a.json", b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "no device activity"),
        (
            "a.json",
            b'{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm"}]}',
            "the CPU alone: 1 of the host's operators",
        ),
        ("a.json", b"\x1f\x8b\x08\x00nonsense-nonsense", "the gzip file"),
        ("a.json.gz", gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:-9], "the gzip file is not whole"),
        ("a.tar.gz", b"no archive", "no whole tar archive"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    """Whatever a file holds that is no trace, the refusal names the file, what is wrong and what to do."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words) as refused:
        load(path)
    assert str(refused.value).startswith(str(path))
    assert refused.value.remedy


def test_refusal_of_bad_json_names_the_line(tmp_path: Path) -> None:
    """The line of the first character that is no JSON is told."""
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [\n{"ph": "X"},\n{"ph": oops}\n]}', encoding="utf-8")
    with pytest.raises(TraceError) as refused:
        load(path)
    assert refused.value.line == 3


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    """No file, a folder without traces, and an archive without traces are told apart."""
    with pytest.raises(TraceError, match="there is no such file"):
        load(tmp_path / "none.json")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(TraceError, match="no file of this folder ends in"):
        load(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "notes.txt", "notes.txt")
    with pytest.raises(TraceError, match="no file in this archive ends in"):
        load(tmp_path / "a.tar")


def test_too_large_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or what a small gzip unpacks to, past the most that is read is refused before it is decoded."""
    monkeypatch.setattr("traces.kineto.document.MAX_BYTES", 1 << 20)
    for name, content in (("a.json", b"[" + b" " * (1 << 21)), ("a.json.gz", gzip.compress(b"{" + b" " * (1 << 24)))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match="larger than"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (changed(dur=-5), "with a negative duration"),
        (changed(dur=None), "without start or duration"),
        (changed(ts="100"), "without start or duration"),
        (changed(ts=True), "without start or duration"),
        (changed(name=None), "without a name"),
        (changed(args=None), "without a stream"),
        (changed(args={"correlation": 4}), "without a stream"),
        (changed(dur=1.8e19), "longer than eleven days"),
    ],
)
def test_broken_events_are_left_out_and_counted(tmp_path: Path, event: dict, words: str) -> None:
    """One broken event among good ones is left out, and the warning says how many and why."""
    trace = load(write(tmp_path / "rank0.json", document([GOOD, event, event])))
    assert len(to_timeline(trace)) == 1
    assert [warning for warning in texts_of(trace.warnings) if warning.startswith(f"2 device activities {words}")]


def test_only_broken_events_are_refused(tmp_path: Path) -> None:
    """A trace of which nothing is left is refused, with the count."""
    path = write(tmp_path / "rank0.json", document([changed(dur=-5)]))
    with pytest.raises(TraceError, match="1 broken events were left out"):
        load(path)


def test_only_waiting_is_refused(tmp_path: Path) -> None:
    """A device that did nothing but wait has no breakdown."""
    path = write(tmp_path / "rank0.json", document([activity("Stream Sync", 0, 5, cat="cuda_sync")]))
    with pytest.raises(TraceError, match="only waits"):
        load(path)


def test_a_rank_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Two files of one rank are two profiles: both are named."""
    for name in ("first.json", "second.json"):
        write(tmp_path / name, document([GOOD], rank=3, world_size=8))
    with pytest.raises(TraceError, match=r"rank 3 is here and in .*first\.json"):
        load(tmp_path)


def test_files_of_two_jobs_are_refused(tmp_path: Path) -> None:
    """Files that say different numbers of ranks are not of one job."""
    write(tmp_path / "a.json", document([GOOD], rank=0, world_size=2))
    write(tmp_path / "b.json", document([GOOD], rank=1, world_size=4))
    with pytest.raises(TraceError, match="different numbers of ranks"):
        load(tmp_path)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    """Ranks of the job without a file are counted and named."""
    for rank in (0, 2):
        write(tmp_path / f"{rank}.json", document([all_reduce(0, 9, ranks=range(4))], rank=rank, world_size=4))
    trace = load(tmp_path)
    assert "2 of 4 ranks have no file here (1, 3)" in texts_of(trace.warnings)
    assert len(trace.matches.collectives) == 1


def test_rank_comes_from_the_name_where_the_file_does_not_say(tmp_path: Path) -> None:
    """``rank7`` or ``worker7`` in a name counts, with a warning; a folder with other names is refused."""
    write(tmp_path / "rank7.json", document([GOOD], rank=None))
    trace = load(tmp_path)
    assert trace.ranks[0].rank == 7
    assert any("does not state its rank: read as rank 7" in warning for warning in texts_of(trace.warnings))
    write(tmp_path / "other.json", document([GOOD], rank=None))
    with pytest.raises(TraceError, match="says which rank this is"):
        load(tmp_path)


def test_step_without_device_work_is_refused(tmp_path: Path) -> None:
    """A window that selects nothing on a rank is refused rather than shown as an idle device."""
    steps = [
        {**activity(f"ProfilerStep#{n}", 100 * n, 100), "cat": "user_annotation", "args": {"External id": n}}
        for n in (1, 2)
    ]
    path = write(tmp_path / "rank0.json", document([*steps, GOOD, launch(1, 120)]))
    with pytest.raises(TraceError, match="launched nothing on the device"):
        load(path, StepWindow(2, 2))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**21), 10**21),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.just([]),
)


@given(st.lists(st.tuples(st.sampled_from(("ts", "dur", "name", "cat", "tid", "ph")), VALUES), max_size=3))
def test_any_value_of_a_field_is_used_or_counted(changes: list[tuple[str, object]]) -> None:
    """Whatever stands in a field, every event with a stream is either a row, or counted as left out."""
    event = GOOD | dict(changes)
    raw = json.dumps(document([GOOD, event])).encode()
    trace = read_rank(Source("rank0.json", lambda: raw))
    assert len(trace.rows) + sum(trace.problems.values()) == 2
    assert (trace.rows.end_s >= trace.rows.start_s).all()


ARGUMENTS = (
    *("stream", "correlation", "device", "bytes", "Collective name", "dtype", "In msg nelems", "Seq", "Src Rank"),
    *("Process Group Ranks", "Process Group Name", "Group size", "Input Dims", "Input type"),
)


@given(st.dictionaries(st.sampled_from(ARGUMENTS), VALUES))
def test_any_argument_is_used_or_counted(arguments: dict[str, object]) -> None:
    """Arguments of any type never end in anything but a row, a count or a refusal."""
    event = all_reduce(200, 5)
    event["args"] |= arguments
    raw = json.dumps(document([GOOD, event])).encode()
    trace = read_rank(Source("rank0.json", lambda: raw))
    assert len(trace.rows) + sum(trace.problems.values()) == 2


HOST = st.dictionaries(st.sampled_from(("ts", "dur", "name", "tid", "args")), VALUES, max_size=3)


@given(HOST, HOST, HOST)
def test_any_host_event_is_used_or_left_out(first: dict, second: dict, third: dict) -> None:
    """Launches, calls of collectives and records of memory of any kind do no harm to the device's rows."""
    known = (
        launch(1, 90),
        annotation("nccl:all_reduce", 80, 40, Input_Dims=[[4]], Input_type=["float"]),
        memory(95, 7),
    )
    changes = [{k: v for k, v in c.items() if k != "args" or v is None} for c in (first, second, third)]
    events = [event | change for event, change in zip(known, changes, strict=True)]
    raw = json.dumps(document([GOOD, activity(ALL_REDUCE, 120, 5, correlation=1), *events])).encode()
    trace = read_rank(Source("rank0.json", lambda: raw))
    assert len(trace.rows) == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_real_trace_with_a_hole_is_refused_or_whole(tmp_path: Path, seed: int) -> None:
    """Bytes cut from or flipped in a real gzipped trace are always noticed: gzip's checksum sees them."""
    generator = random.Random(seed)
    raw = bytearray(shared_trace("alexnet_critical_path.json.gz").read_bytes())
    at = generator.randrange(20, len(raw) - 20)
    if seed % 2:
        del raw[at : at + generator.randrange(1, 2000)]
    else:
        raw[at] ^= 1 << generator.randrange(8)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(raw)
    with pytest.raises(TraceError):
        load(path)
