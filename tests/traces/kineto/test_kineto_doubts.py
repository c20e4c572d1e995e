"""Traces that contradict themselves are used, and what is doubtful is said, with counts; or they are refused."""

import errno
import gzip
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.replay.changes import Changes
from sim.replay.run import Replayer
from tests.examples import examples
from tests.traces.kineto_traces import activity, all_reduce, annotation, document, launch, texts_of, write
from traces.doubt import Doubt
from traces.errors import TraceError
from traces.kineto.breakdown import break_down
from traces.kineto.document import Source, decode
from traces.kineto.rank import StepWindow
from traces.kineto.trace import KinetoTrace, load, to_timeline

Event = dict[str, Any]
STEP_US = 120.0


def events_of(
    rank: int, num_steps: int = 2, *, first_step: int = 3, clock: Callable[[float], float] = float
) -> list[Event]:
    """Return what a profiler records of steps of two kernels and an all_reduce, by a clock that may be odd."""
    events = []
    for step in range(num_steps):
        begin = 1000.0 + STEP_US * step
        for place in range(2):
            number = 10 * step + place + 1
            events += [
                launch(number, begin + 20 * place),
                activity("gemm", begin + 5 + 30 * place, 25, correlation=number),
            ]
        number = 10 * step + 9
        events += [launch(number, begin + 45), all_reduce(begin + 60 + rank, 40 - rank, Seq=step)]
        events[-1]["args"]["correlation"] = number
        events.append(annotation(f"ProfilerStep#{first_step + step}", begin - 1, STEP_US - 2))
    for event in events:
        begin, end = clock(event["ts"]), clock(event["ts"] + event["dur"])
        event |= {"ts": begin, "dur": end - begin}
    return events


def two_ranks(folder: Path, second: list[Event], **others: Any) -> Path:
    """Write a profile of two ranks, of which the second is another one's or damaged."""
    write(folder / "rank0.json", document(events_of(0, len(second) // 7), rank=0, world_size=2))
    write(folder / "rank1.json", document(second, rank=1, world_size=2, **others))
    return folder


def doubts(trace: KinetoTrace, words: str) -> list[str]:
    """Return the warnings that say something."""
    return [warning for warning in texts_of(trace.warnings) if words in warning]


# --- times ---------------------------------------------------------------------------------------------------------


def test_clocks_of_two_hosts_are_brought_together_and_a_month_between_them_is_said(tmp_path: Path) -> None:
    """Seconds between hosts are nothing to say; a month is: the files may be those of two runs."""
    (tmp_path / "a").mkdir()
    trace = load(two_ranks(tmp_path / "a", events_of(1, clock=lambda us: us + 7e6)))
    assert not trace.warnings
    (tmp_path / "b").mkdir()
    trace = load(two_ranks(tmp_path / "b", events_of(1, clock=lambda us: us + 30 * 86400e6)))
    assert doubts(trace, "is this one run?") == [
        "the clock of 1 rank is far from the first rank's (2,592,000 s on rank 1): is this one run?"
    ]


@pytest.mark.parametrize(("speed", "said"), [(1.0, ""), (1.00001, ""), (1.01, "+0.498 %"), (1000.0, "+99.8 %")])
def test_clocks_of_other_speeds_or_units_are_said(tmp_path: Path, speed: float, said: str) -> None:
    """A clock that runs 1 % fast, or counts nanoseconds as microseconds, is told by ends that lie apart ever more."""
    trace = load(two_ranks(tmp_path, events_of(1, 9, clock=lambda us: us * speed)))
    assert bool(doubts(trace, "more than a real clock can")) == bool(said)
    assert all(said in warning for warning in doubts(trace, "more than a real clock can"))


def test_work_of_very_different_length_is_said(tmp_path: Path) -> None:
    """A single step in another unit has no drift to tell it by, but lasts a thousand times as long."""
    trace = load(two_ranks(tmp_path, events_of(1, 1, clock=lambda us: 1000 * us)))
    assert doubts(trace, "spans from 0.095 ms (rank 0) to 95 ms (rank 1)")


def test_late_collectives_are_no_drift(tmp_path: Path) -> None:
    """Ends that lie apart now and then, and not more and more, are no matter of a clock's speed."""
    second = events_of(1, 9)
    for event in [event for event in second if event["cat"] == "kernel"][2::9]:
        event["dur"] += 12.0
    assert not doubts(load(two_ranks(tmp_path, second)), "more than a real clock can")


def test_times_in_nanoseconds_are_refused(tmp_path: Path) -> None:
    """A file whose times since 1970 are nanoseconds is refused, with what its starts are."""
    events = events_of(0, clock=lambda us: 1.7e18 + 1e3 * us)
    with pytest.raises(TraceError, match="6 device activities with a start that is no time in microseconds"):
        load(write(tmp_path / "rank0.json", document(events)))


def test_an_activity_a_month_from_the_others_is_left_out(tmp_path: Path) -> None:
    """One activity with a broken start does not make the span a month long."""
    events = [*events_of(0), activity("lost", 30 * 86400e6, 5)]
    trace = load(write(tmp_path / "rank0.json", document(events)))
    assert doubts(trace, "1 device activity more than eleven days from the others: left out")
    assert to_timeline(trace).duration_s < 1e-3


def test_activities_that_begin_too_early_are_counted(tmp_path: Path) -> None:
    """An activity before its launch, and one while its stream is busy, are used, counted, and said by how much."""
    events = [*events_of(0), launch(99, 1300), activity("early", 1290, 5, correlation=99), activity("twice", 1012, 9)]
    trace = load(write(tmp_path / "rank0.json", document(events)))
    assert doubts(trace, "1 device activity begins before the host launched it (by up to 10 us)")
    assert doubts(trace, "1 device activity begins before its stream is free (by up to 18 us)")


# --- ranks and steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "said"), [(0, 0), (2, 2), (4, 0), (64, 64), (2**31 - 1, 2**31 - 1)])
def test_missing_ranks_are_counted_from_what_files_and_groups_say(tmp_path: Path, others: int, said: int) -> None:
    """A job of which the file does not say the size is at least as large as its groups; any size is counted at once."""
    ranks = list(range(4)) if not said else [0, 1]
    events = [all_reduce(10, 5, ranks=ranks)]
    trace = load(write(tmp_path / "rank0.json", document(events, world_size=others)))
    size = max(others, len(ranks))
    assert [
        warning
        for warning in texts_of(trace.warnings)
        if warning.startswith(f"{size - 1:,} of {size:,} ranks {'have' if size > 2 else 'has'} no file")
    ]


def test_ranks_past_the_job_are_named(tmp_path: Path) -> None:
    """Files that say a job of one rank, and are of ranks 0 and 1, contradict themselves."""
    for rank in range(2):
        write(tmp_path / f"{rank}.json", document(events_of(rank), rank=rank, world_size=1))
    assert doubts(load(tmp_path), "rank 1 is beyond the number of ranks that the files state")


def test_steps_that_all_ranks_have_whole_are_kept(tmp_path: Path) -> None:
    """Of ranks that recorded different steps those are kept which all have whole; none in common is refused."""
    write(tmp_path / "a.json", document(events_of(0, 4), rank=0, world_size=2))
    write(tmp_path / "b.json", document(events_of(1, 3), rank=1, world_size=2))
    trace = load(tmp_path, StepWindow())
    assert [len(rank.rows) for rank in trace.ranks] == [6, 6]
    assert doubts(trace, "rank 0 3 to 6, rank 1 3 to 5; 3 to 4 are kept")
    write(tmp_path / "b.json", document(events_of(1, 3, first_step=13), rank=1, world_size=2))
    with pytest.raises(TraceError, match="rank 0 3 to 6, rank 1 13 to 15; none is whole on all of them"):
        load(tmp_path, StepWindow())
    write(
        tmp_path / "b.json", document([e for e in events_of(1, 3) if "Profiler" not in e["name"]], rank=1, world_size=2)
    )
    assert doubts(load(tmp_path, StepWindow()), "1 rank recorded no steps: all of its work is kept")


def test_graphs_without_launches_have_no_steps(tmp_path: Path) -> None:
    """Where no activity has its launch, as of a captured graph, no step can be chosen, and the refusal says so."""
    events = [event for event in events_of(0) if event["cat"] != "cuda_runtime"]
    path = write(tmp_path / "rank0.json", document(events))
    with pytest.raises(TraceError, match="none of the 6 device activities has its launch"):
        load(path, StepWindow())
    assert len(load(path).ranks[0].rows) == 6


@pytest.mark.parametrize(
    ("text", "label"),
    [("[0, 1]", "0,1"), ("0,1", "0,1"), ("[-1, 0]", "group 0"), ("[0, 0]", "group 0"), ("[]", "group 0"),
     ("[" + "9" * 5000 + ", 1]", "group 0"), ("[0, 1, ..., 63]", "group 0"), ("[a, b]", "group 0"), (17, "group 0")],
)  # fmt: skip
def test_groups_that_are_no_ranks_go_by_their_name(tmp_path: Path, text: object, label: str) -> None:
    """What does not list as many different ranks as the group has is not taken for one."""
    events = [all_reduce(10, 5, **{"Process_Group_Ranks": text})]
    trace = load(write(tmp_path / "rank0.json", document(events)))
    assert [facts.group.label for facts in trace.ranks[0].rows.facts.values()] == [label]


# --- files -----------------------------------------------------------------------------------------------------


GOOD = json.dumps(document(events_of(0))).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(gzip.compress(GOOD)), "compressed twice"),
        (b"PK\3\4rest", "zip archive"),
        (GOOD.decode().encode("utf-16"), "UTF-16"),
        (GOOD.replace(b'"dur": 25', b'"dur": NaN', 1), "NaN .* is no number"),
        (GOOD.replace(b'"dur": 25', b'"dur": -Infinity', 1), "-Infinity .* is no number"),
        (GOOD + GOOD, "trailing characters"),
    ],
)
def test_other_formats_are_named(content: bytes, words: str) -> None:
    """A file that is something else is refused as what it is."""
    with pytest.raises(TraceError, match=words):
        decode(Source("rank0.json", lambda: content))


def test_the_mark_of_utf8_is_skipped() -> None:
    """A byte order mark before the JSON, as some editors write it, changes nothing."""
    assert decode(Source("rank0.json", lambda: b"\xef\xbb\xbf" + GOOD)).events


@pytest.mark.parametrize("name", ["rank0.json", "a.tar", "a.tar.gz"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """A pipe that nobody writes to is refused rather than waited for, under any name."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(TraceError, match=r"must be a file|the file is empty"):
        load(tmp_path / name)


def test_devices_are_refused() -> None:
    """A device that never ends is not read."""
    with pytest.raises(TraceError, match="this is a device"):
        load(Path("/dev/zero"))


def test_hidden_files_of_a_folder_are_not_traces(tmp_path: Path) -> None:
    """What other systems leave beside the traces (``._rank0.json``) is passed over."""
    (tmp_path / "._rank0.json").write_bytes(b"\0\5")
    write(tmp_path / "rank0.json", document(events_of(0)))
    assert len(load(tmp_path).ranks) == 1


def archive(path: Path, names: list[str]) -> Path:
    """Write a tar archive of traces, a rank each."""
    with tarfile.open(path, "w") as file:
        for rank, name in enumerate(names):
            raw = json.dumps(document(events_of(rank), rank=rank, world_size=0)).encode()
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            file.addfile(info, BytesIO(raw))
    return path


@pytest.mark.parametrize("step", range(8))
def test_an_archive_cut_anywhere_is_refused(tmp_path: Path, step: int) -> None:
    """Wherever it was cut, between two members too, an archive without its end is not whole: no rank is lost unseen."""
    path = archive(tmp_path / "a.tar", ["rank0.json", "rank1.json"])
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0"))
    for length in range(64 * step, end, 512):
        path.write_bytes(raw[:length])
        with pytest.raises(TraceError, match="no whole tar archive"):
            load(path)


@pytest.mark.parametrize("name", ["/etc/rank0.json", "../../rank0.json"])
def test_names_in_an_archive_write_nothing(tmp_path: Path, name: str) -> None:
    """Members are read where they are: a name that leads out of the archive leads nowhere."""
    folder = tmp_path / "inner"
    folder.mkdir()
    assert len(load(archive(folder / "a.tar", [name])).ranks) == 1
    assert {entry.name for entry in tmp_path.rglob("*")} == {"inner", "a.tar"}


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    """A member that is a link to a file of this machine is no trace."""
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        info = tarfile.TarInfo("rank0.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        file.addfile(info)
    with pytest.raises(TraceError, match="no file in this archive"):
        load(tmp_path / "a.tar")


def test_what_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the machine cannot hold is refused in words."""

    def full() -> bytes:
        raise MemoryError

    with pytest.raises(TraceError, match="more memory than there is"):
        decode(Source("rank0.json", full))


def test_folders_that_may_not_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without permission is refused with the reason."""

    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TraceError, match="permission denied"):
        load(tmp_path)


# --- any damage ------------------------------------------------------------------------------------------------


DAMAGE: dict[str, tuple[Callable[[Event], Event | None], str]] = {
    "negative": (lambda e: e | {"dur": -1.0 - e["dur"]}, "device_negative_duration"),
    "no start": (lambda e: e | {"ts": str(e["ts"])}, "device_no_time"),
    "endless": (lambda e: e | {"dur": 1e18}, "device_endless"),
    "no stream": (lambda e: e | {"args": {}}, "device_no_stream"),
    "nameless": (lambda e: e | {"name": None}, "device_no_name"),
    "lost": (lambda e: e | {"ts": e["ts"] + 1e13}, "device_far"),
    "unwritten": (lambda e: None, ""),
    "late": (lambda e: e | {"ts": e["ts"] + 33.0}, ""),
    "long": (lambda e: e | {"dur": 7 * e["dur"]}, ""),
    "another stream": (lambda e: e | {"args": e["args"] | {"stream": "13"}}, ""),
    "no launch": (lambda e: e | {"args": e["args"] | {"correlation": None}}, ""),
    "another group": (lambda e: e | {"args": e["args"] | {"Process Group Ranks": "[3, 5]"}}, ""),
    "another size": (lambda e: e | {"args": e["args"] | {"In msg nelems": 7, "Out msg nelems": 7}}, ""),
    "another kind": (lambda e: e | {"args": e["args"] | {"Collective name": "send", "Dst Rank": 1}}, ""),
}  # fmt: skip


@settings(max_examples=examples(32), deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), st.sampled_from(sorted(DAMAGE))), max_size=6,
                       unique_by=lambda entry: entry[:2]))  # fmt: skip
def test_any_damage_is_counted_and_what_is_left_adds_up(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int, str]]
) -> None:
    """Whatever happens to activities of two ranks, each is used, or counted under what is wrong with it, or the profile
    is refused; the parts of what is left add up to its span, none is negative, and it can be replayed.
    """
    folder, expected, unwritten = tmp_path_factory.mktemp("damaged"), Counter[str](), 0
    for rank in range(2):
        others = [event for event in events_of(rank, 3) if event["cat"] != "kernel"]
        events: list[Event | None] = [event for event in events_of(rank, 3) if event["cat"] == "kernel"]
        for where, place, kind in damage:
            if where == rank:
                events[place] = DAMAGE[kind][0](events[place] or {})
                expected[DAMAGE[kind][1]] += 1
        unwritten += events.count(None)
        write(folder / f"rank{rank}.json", document([e for e in [*events, *others] if e], rank=rank, world_size=2))
    trace = load(folder)
    for words, count in expected.items():
        assert not words or Doubt(words, count) in trace.warnings
    kept = sum(len(rank.rows) for rank in trace.ranks)
    assert kept + unwritten + sum(count for words, count in expected.items() if words) == 18
    for rank in trace.ranks:
        assert_adds_up(rank.rows)
    timeline = to_timeline(trace)
    assert len(timeline) == kept
    assert (timeline.end_s >= timeline.start_s).all()
    assert 0.0 < Replayer(trace).run(Changes()).span_s < np.inf


def assert_adds_up(rows: Any) -> None:
    """Assert what holds for every breakdown."""
    parts = break_down(rows)
    assert parts.idle_s + parts.compute_s + parts.non_compute_s == pytest.approx(parts.span_s)
    assert min(parts.idle_s, parts.non_compute_s, parts.exposed_communication_s, parts.overlap_s) >= -1e-12
    busy_s = parts.span_s - parts.idle_s
    assert max(parts.compute_s, parts.communication_s, parts.memory_s) <= busy_s + 1e-12
    assert busy_s <= parts.compute_s + parts.communication_s + parts.memory_s + 1e-12
