"""Small files that unpack to very large ones are refused while they are unpacked, and say what the most is."""

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.traces.kineto_traces import activity, document, launch
from traces.chakra import file as chakra_file
from traces.chakra.node import ChakraTrace, Node
from traces.errors import TraceError
from traces.kineto import document as kineto_document
from traces.kineto import inflating
from traces.kineto.trace import load
from traces.parquet import read_timeline, write_timeline
from traces.sidecar import read_section
from traces.timeline import TimelineBuilder

MIB = 1 << 20
SPACES = gzip.compress(b" " * (16 * MIB))
TOO_FAR = "inflates to more than 200 times its size, the most that is read"


@pytest.fixture
def peak_mib() -> Iterator[list[float]]:
    """Return a list that gets how many MiB Python held at most during the test, and hold it to a bound."""
    tracemalloc.start()
    yield []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * MIB


def refuse(path: Path, words: str) -> None:
    """Check that a profile is refused with these words."""
    with pytest.raises(TraceError) as raised:
        load(path)
    assert words in str(raised.value)
    assert raised.value.remedy


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], packed: bool = True) -> Path:
    """Write a tar archive."""
    with tarfile.open(path, "w:gz" if packed else "w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.usefixtures("peak_mib")
def test_gzip_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    """A file of 1 MiB that holds 1 GiB is refused after its first 64 MiB."""
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + 64 * SPACES)
    refuse(path, TOO_FAR)


@pytest.mark.usefixtures("peak_mib")
@pytest.mark.parametrize("content", [b"\0", b" ", b"x"])
def test_file_that_begins_like_no_trace_is_not_read_on(tmp_path: Path, content: bytes) -> None:
    """What neither an object nor a list begins is refused by its beginning, however long it is."""
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(content * MIB) + 64 * SPACES)
    refuse(path, "the file is empty" if content == b" " else "this is not JSON")


def test_traces_that_pack_well_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that differ in their times alone, indented, inflate to 60 times their size, and are a trace."""
    monkeypatch.setattr(inflating, "WINDOW_BYTES", MIB)
    events = [launch(1, 0), *(activity("gemm" * 20, 10.0 * at, 5.0, correlation=1, stream=7) for at in range(8_000))]
    text = json.dumps(document(events), indent=2).encode()
    packed = gzip.compress(text, 9)
    assert len(text) > 40 * len(packed)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed)
    assert len(load(path).ranks[0].rows) == 8_000


@pytest.mark.usefixtures("peak_mib")
def test_archive_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    """So is a compressed archive, whether a member is large or a header, which is read whole."""
    member = tarfile.TarInfo("rank0.json")
    member.size = 1 << 30
    large = tmp_path / "large.tar.gz"
    large.write_bytes(gzip.compress(member.tobuf()) + 64 * SPACES)
    refuse(large, TOO_FAR)
    header = tarfile.TarInfo("header")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    for name, packed in (("header.tar.gz", True), ("header.tar", False)):
        path = tmp_path / name
        path.write_bytes(gzip.compress(header.tobuf()) + 64 * SPACES if packed else header.tobuf() + b" " * MIB)
        refuse(path, "a header of 1,073,7")
        refuse(path, "64 MiB are the most that is read")


def test_archive_of_very_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members take memory even where they are empty."""
    monkeypatch.setattr(kineto_document, "MAX_MEMBERS", 20)
    path = archive(tmp_path / "a.tar.gz", *((tarfile.TarInfo(f"a{place}"), b"") for place in range(21)))
    refuse(path, "more than 20 members, the most that is read")


def test_member_with_holes_is_refused(tmp_path: Path) -> None:
    """A sparse file of an archive may claim any size, and none of it is there."""
    member = tarfile.TarInfo("rank0.json")
    member.type = tarfile.GNUTYPE_SPARSE
    raw = bytearray(member.tobuf(format=tarfile.GNU_FORMAT))
    raw[386:398], raw[398:410], raw[483:495] = b"00000000000\0", b"00000000000\0", b"77777777777\0"
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(raw) + b"\0" * 2048)
    refuse(path, "the archive leaves holes in this file")


def test_archive_compressed_otherwise_is_named(tmp_path: Path) -> None:
    """What else than gzip compresses an archive is told by name, and not unpacked."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"\xfd7zXZ\0" + b"\0" * 600)
    refuse(path, "this is compressed by xz, not a tar archive (gzipped or not)")


def test_archive_is_read_from_begin_to_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members in an order that is not that of their names are read in their own: nothing is inflated twice."""
    events = [launch(1, 0), activity("a", 1, 2, correlation=1)]
    members = [
        (tarfile.TarInfo(f"rank{rank}.json"), json.dumps(document(events, rank=rank)).encode())
        for rank in (3, 1, 4, 0, 2)
    ]
    path = archive(tmp_path / "a.tar.gz", *members)
    seeks = []
    seek = inflating.InflatedFile.seek

    def counted(file: inflating.InflatedFile, position: int, whence: int = 0) -> int:
        seeks.append(position - file.tell())
        return seek(file, position, whence)

    monkeypatch.setattr(inflating.InflatedFile, "seek", counted)
    assert [rank.rank for rank in load(path).ranks] == [0, 1, 2, 3, 4]
    assert sum(step < 0 for step in seeks) <= 2  # back to the first member once the last header is known


@pytest.mark.usefixtures("peak_mib")
def test_very_many_empty_objects_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two characters of text make an object of many bytes; no trace is so dense."""
    monkeypatch.setattr(kineto_document, "_FEW_PARTS", 1_000)
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + b"{}," * 2_000 + b"{}]}")
    refuse(path, "2,003 objects and lists in 6,0")
    refuse(path, "the limit is one for every 6 bytes")


def test_timeline_of_very_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of one value packs to nothing, whatever its length: rows are counted before they are read."""
    monkeypatch.setattr("traces.parquet.MAX_ROWS", 200_000)
    builder = TimelineBuilder()
    builder.add(rank=0, stream="a", name="a", kind="compute", start_s=0.0, end_s=1.0)
    path = tmp_path / "timeline.parquet"
    write_timeline(builder.build(), path)
    table = pq.read_table(path)
    places = pa.array(np.zeros(200_001, np.int64))
    pq.write_table(pa.table([column.chunk(0).take(places) for column in table.columns], schema=table.schema), path)
    assert path.stat().st_size < MIB
    with pytest.raises(TraceError, match=r"200,001 rows, .*; the limits are 200,000 rows and 3,072 MiB"):
        read_timeline(path)


def test_timeline_of_very_long_words_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are counted, too, as the end of the file states them."""
    monkeypatch.setattr("traces.parquet.MAX_BYTES", 1 << 20)
    builder = TimelineBuilder()
    builder.add(rank=0, stream="a", name="a" * (2 << 20), kind="compute", start_s=0.0, end_s=1.0)
    path = tmp_path / "timeline.parquet"
    write_timeline(builder.build(), path)
    with pytest.raises(TraceError, match="MiB once unpacked; the limits are 33,554,432 rows and 1 MiB"):
        read_timeline(path)


def test_chakra_traces_are_read_message_by_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are counted over all ranks, and groups are bounded."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    nodes = tuple(Node(id=number, name="a", kind="compute", duration_s=1e-3) for number in range(1, 4))
    chakra_file.write_trace(ChakraTrace({0: nodes, 1: nodes}, {"all": (0, 1)}), tmp_path, "run")
    assert len(chakra_file.read_trace(tmp_path).ranks[1]) == 3
    monkeypatch.setattr(chakra_file, "MAX_NODES", 5)
    with pytest.raises(TraceError, match="more than 5 nodes are not read"):
        chakra_file.read_trace(tmp_path)
    monkeypatch.setattr(chakra_file, "MAX_GROUPS_BYTES", 8)
    with pytest.raises(
        TraceError, match="the process groups cannot be read: the file is larger than the limit of 0 MiB"
    ):
        chakra_file.read_trace(tmp_path)


@pytest.mark.parametrize(("text", "words"), [
    ("a: [" + "1," * 30_000 + "]", "more than 20,000 values, the most that is read"),
    ("a: !!bool x", "tags are not read"),
    ("a: !!int ''", "tags are not read"),
    ("a: !!python/object/apply:os.getcwd []", "tags are not read"),
    ("a: &a [1]\nb: *a", "anchors and aliases are not read"),
    ("a: " + "[" * 5_000, "nested more than 20 deep"),
])  # fmt: skip
def test_sidecars_are_refused_before_they_are_built(tmp_path: Path, text: str, words: str) -> None:
    """Aliases, tags, deep nesting and very many values are refused while the text is read."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        read_section(path, "mend it")
    assert words in str(raised.value)
