"""Chakra execution traces as files."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
from traces.chakra.node import ChakraTrace, Node
from traces.errors import TraceError

pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install 'meshtwin[chakra]'")

from tests.traces.kineto_traces import texts_of
from traces.chakra.file import is_chakra, read_trace, write_trace

Fields = dict[int, list[Any]]


def varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = raw[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def fields(raw: bytes) -> Fields:
    """Return a message's fields by number, from the definition of the wire format alone."""
    found: Fields = {}
    at = 0
    while at < len(raw):
        key, at = varint(raw, at)
        value: Any
        match key & 7:
            case 0:
                value, at = varint(raw, at)
            case 1:
                value, at = struct.unpack_from("<d", raw, at)[0], at + 8
            case 2:
                length, at = varint(raw, at)
                value, at = raw[at : at + length], at + length
            case other:
                raise AssertionError(other)
        found.setdefault(key >> 3, []).append(value)
    return found


def frames(path: Path) -> list[Fields]:
    """Return the messages of a file, each with its length before it."""
    raw, at, found = path.read_bytes(), 0, []
    while at < len(raw):
        length, at = varint(raw, at)
        found.append(fields(raw[at : at + length]))
        at += length
    return found


def attributes(node: Fields) -> dict[str, tuple[int, Any]]:
    """Return a node's attributes: the number of the field that holds the value, and the value."""
    result = {}
    for raw in node[10]:
        attribute = fields(raw)
        (number,) = [key for key in attribute if key != 1] or [0]
        result[attribute[1][0].decode()] = (number, attribute[number][0] if number else None)
    return result


GROUPS = {"1": (0, 1)}
NODES = (
    Node(id=0, name="gemm", kind="compute", duration_s=2.5e-6, num_bytes=48, flop=1000, stream="compute"),
    Node(id=1, name="gather", kind="all_gather", after=(0,), duration_s=300e-6, num_bytes=4096, group="1", stream="tp"),
    Node(id=2, name="hand on", kind="send", after=(0, 1), duration_s=1e-6, num_bytes=64, peer=1, tag=3, stream="pp"),
)


def test_fields_have_the_numbers_of_the_schema(tmp_path: Path) -> None:
    """A decoder that knows only the wire format finds what et_def.proto says, in the types that ASTRA-sim reads."""
    write_trace(ChakraTrace({0: NODES}, GROUPS), tmp_path, "job")
    metadata, gemm, gather, send = frames(tmp_path / "job.0.et")
    assert metadata[1] == [b"0.0.4"]
    assert (gemm[2], gemm[3], gemm[7]) == ([b"gemm"], [4], [2])
    assert 1 not in gemm  # an id of 0 is not written
    assert (gather[1], gather[3], gather[7]) == ([1], [7], [300])
    assert send[3] == [5]
    assert send[5] == [b"\x00\x01"]
    assert attributes(gemm)["num_ops"] == (9, 1000)
    assert attributes(gemm)["tensor_size"] == (13, 48)
    assert attributes(gemm)["is_cpu_op"] == (27, 0)
    assert attributes(gather)["comm_type"] == (9, 2)
    assert attributes(gather)["comm_size"] == (9, 2048)
    assert attributes(gather)["pg_name"] == (29, b"1")
    assert {key: attributes(send)[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")} == {
        "comm_src": (7, 0), "comm_dst": (7, 1), "comm_tag": (7, 3), "comm_size": (9, 64),
    }  # fmt: skip


nodes = st.lists(
    st.builds(
        Node, id=st.just(0), name=st.text(max_size=5),
        kind=st.sampled_from(("compute", "host", "all_reduce", "barrier", "")),
        duration_s=st.floats(0, 1e3), num_bytes=st.integers(0, 2**40), stream=st.sampled_from(("compute", "tp")),
    ), max_size=5,
)  # fmt: skip


@settings(max_examples=examples(10))
@given(nodes)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, drawn: list[Node]) -> None:
    """Durations to the last digit, kinds, bytes and dependencies come back as they were."""
    folder = tmp_path_factory.mktemp("chakra")
    written = tuple(
        Node(**{key: getattr(node, key) for key in ("name", "kind", "duration_s", "stream")}, id=place,
             after=tuple(range(place)), num_bytes=node.num_bytes if node.kind else 0)
        for place, node in enumerate(drawn)
    )  # fmt: skip
    write_trace(ChakraTrace({0: written, 1: NODES}, GROUPS), folder, "job")
    read = read_trace(folder)
    assert read.ranks == {0: written, 1: NODES[:2] + read.ranks[1][2:]}
    assert read.groups == GROUPS
    assert is_chakra(folder)


def test_an_op_of_the_cpu_is_the_hosts(tmp_path: Path) -> None:
    """What ``is_cpu_op`` says decides whose a compute node is; traces of nothing but such nodes are refused."""
    ours = (NODES[0], replace(NODES[0], id=1, name="aten::mm", kind="host"))
    write_trace(ChakraTrace({0: ours}, {}), tmp_path, "job")
    _, on_device, on_host = frames(tmp_path / "job.0.et")
    assert (on_device[3], on_host[3]) == ([4], [4])
    assert [attributes(node)["is_cpu_op"][1] for node in (on_device, on_host)] == [0, 1]
    assert [node.kind for node in read_trace(tmp_path).ranks[0]] == ["compute", "host"]
    write_trace(ChakraTrace({0: ours[1:]}, {}), tmp_path, "job")
    with pytest.raises(TraceError, match="no node of these traces computes or communicates on a device"):
        read_trace(tmp_path)


def cuts_between_nodes(whole: bytes) -> list[int]:
    """Return where a file may be cut so that each message of it is whole."""
    cuts, at = [], 0
    while at < len(whole):
        length, at = varint(whole, at)
        at += length
        cuts.append(at)
    return cuts[:-1]


def test_damaged_and_doubled_files_are_refused(tmp_path: Path) -> None:
    """A truncated file, a file of another format, and a rank with two files are errors that name the file."""
    write_trace(ChakraTrace({0: NODES}, GROUPS), tmp_path, "job")
    path = tmp_path / "job.0.et"
    whole = path.read_bytes()
    for raw in (whole[:-3], b"\xff" * 40, whole + b"\x05\x0a\xff\xff\xff\xff"):
        path.write_bytes(raw)
        with pytest.raises(TraceError, match=r"job.0.et: this is no Chakra trace, or only part of one"):
            read_trace(tmp_path)
    for raw in (b"", *(whole[:cut] for cut in cuts_between_nodes(whole))):
        path.write_bytes(raw)
        with pytest.raises(TraceError, match=r"the file is empty|it has [0-2] nodes of 3"):
            read_trace(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "other.0.et").write_bytes(whole)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="rank 0 has two files"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match=r"there is no .et file here"):
        read_trace(tmp_path / "empty")
    (tmp_path / "other.0.et").unlink()
    (tmp_path / "job.groups.json").write_text("{")
    with pytest.raises(TraceError, match="the process groups cannot be read"):
        read_trace(tmp_path)


@pytest.mark.parametrize("duration_s", [-1e-6, float("nan"), float("inf"), 1e300])
def test_durations_that_are_none_are_refused(tmp_path: Path, duration_s: float) -> None:
    """A node that lasts less than nothing, for ever or for no number of seconds is named."""
    node = Node(id=4, name="gemm", kind="compute", duration_s=duration_s)
    path = tmp_path / "job.0.et"
    write_trace(ChakraTrace({0: (replace(node, duration_s=1e-6),)}, {}), tmp_path, "job")
    path.write_bytes(path.read_bytes().replace(struct.pack("<d", 1e-6), struct.pack("<d", duration_s)))
    with pytest.raises(TraceError, match=r"node 4 \(gemm\) lasts"):
        read_trace(tmp_path)


def test_nodes_of_one_number_and_traces_of_nothing_are_refused(tmp_path: Path) -> None:
    """Nobody could tell which of two nodes others wait for; and nothing has no duration."""
    write_trace(ChakraTrace({0: (NODES[0], NODES[0])}, {}), tmp_path, "job")
    with pytest.raises(TraceError, match="there are two nodes 0, one is gemm"):
        read_trace(tmp_path)
    write_trace(ChakraTrace({0: ()}, {}), tmp_path, "job")
    with pytest.raises(TraceError, match="no node of these traces computes"):
        read_trace(tmp_path)


@pytest.mark.parametrize("text", ["[", "[1]", '{"1": [1e400]}', '{"1": 3}', "[" * 100_000])
def test_groups_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    """Whatever a file of process groups holds that is none, the file is named."""
    write_trace(ChakraTrace({0: NODES}, {}), tmp_path, "job")
    (tmp_path / "job.groups.json").write_text(text)
    with pytest.raises(TraceError, match=r"job\.groups\.json: the process groups cannot be read"):
        read_trace(tmp_path)


def test_what_waits_for_nobody_is_counted(tmp_path: Path) -> None:
    """Collectives of which ranks have no file or take no part, and messages to ranks without one, are said."""
    write_trace(ChakraTrace({0: NODES}, {"1": (0, 5)}), tmp_path, "job")
    assert tuple(texts_of(read_trace(tmp_path).warnings)) == (
        "1 collective lacks ranks of its process group: it does not wait for these ranks",
        "1 message to or from ranks without a file: it does not wait for the other end",
    )
    write_trace(ChakraTrace({1: NODES[:2]}, {"1": (0, 1)}), tmp_path, "job")
    assert read_trace(tmp_path).warnings == ()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A folder or a pipe under the name of a rank is refused, and not waited for."""
    make(tmp_path / "job.0.et")
    with pytest.raises(TraceError, match=r"job\.0\.et: this cannot be read"):
        read_trace(tmp_path)
