"""Chakra traces as files ``PREFIX.RANK.et``: a GlobalMetadata, then Nodes, each preceded by its length.

Lengths are protobuf's varints. ``PREFIX.groups.json`` holds the ranks of each process group in ASTRA-sim's format
(``--comm-group-configuration``). Attributes are those that ASTRA-sim reads (``et_feeder_node.cpp`` of
mlcommons/chakra), and two of our own: ``duration_s``, the exact duration, which Chakra rounds to whole microseconds,
and ``stream``, the op's stream.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from msgspec.structs import replace

from traces.chakra.lonely import lonely
from traces.chakra.node import HOST, NO_RANK, ChakraTrace, Node
from traces.chakra.schema import VERSION, DecodeError, Messages, messages
from traces.doubt import Doubt, counted
from traces.errors import TraceError

METADATA_NODE: Final = 1
COMP_NODE: Final = 4
COMM_SEND_NODE: Final = 5
COMM_RECV_NODE: Final = 6
COMM_COLL_NODE: Final = 7
_MEMORY_NODES: Final = frozenset({2, 3})
COLLECTIVES: Final[Mapping[str, int]] = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_COMMUNICATION: Final = frozenset({*COLLECTIVES, "send", "recv"})
_KINDS: Final = {**{number: kind for kind, number in COLLECTIVES.items()}, 8: "reduce_scatter"}
_FILE: Final = re.compile(r"(.*)\.(\d{1,7})\.et")
_REMEDY: Final = "name a folder with one PREFIX.RANK.et per rank"
MAX_MESSAGE_BYTES: Final = 1 << 26
MAX_GROUPS_BYTES: Final = 1 << 26
MAX_NODES: Final = 1 << 24
"""Limit of nodes of all ranks, which take about 8 GiB."""
_LENGTH_BITS: Final = 35
MAX_NAMED: Final = 8
MAX_DURATION_S: Final = 1e6
_NUM_NODES: Final = "num_nodes"
"""An attribute of our own: the number of nodes that follow, by which a file cut off between nodes is noticed."""

Values = dict[str, bool | int | float | str]


def is_chakra(path: Path) -> bool:
    """Return whether a folder holds Chakra traces; False for an unreadable folder."""
    try:
        return path.is_dir() and any(_FILE.fullmatch(entry.name) for entry in path.iterdir())
    except OSError:
        return False


def write_trace(trace: ChakraTrace, folder: Path, prefix: str) -> None:
    """Write a file per rank and the process groups. Raises TraceError if protobuf is not installed."""
    known = messages()
    for rank, nodes in trace.ranks.items():
        with (folder / f"{prefix}.{rank}.et").open("wb") as file:
            file.writelines(_framed(message) for message in _messages(known, rank, nodes, trace.groups))
    text = json.dumps({name: list(ranks) for name, ranks in trace.groups.items()}, indent=1)
    (folder / f"{prefix}.groups.json").write_text(text + "\n", encoding="utf-8")


def read_trace(folder: Path) -> ChakraTrace:
    """Return the traces of a folder. Raises TraceError for a file that is cut off, and for a rank with two files."""
    known, files = messages(), dict[int, Path]()
    for path in sorted(folder.iterdir()):
        if found := _FILE.fullmatch(path.name):
            rank = int(found[2])
            if rank in files:
                rule = f"rank {rank} has two files: this one and {files[rank].name}"
                raise TraceError(str(path), rule, "keep the traces of one job in a folder")
            files[rank] = path
    if not files:
        raise TraceError(str(folder), "there is no .et file here", _REMEDY)
    groups = {name: ranks for path in sorted(folder.glob("*.groups.json")) for name, ranks in _groups(path)}
    problems: Counter[str] = Counter()
    ranks, left = dict[int, tuple[Node, ...]](), MAX_NODES
    for rank in sorted(files):
        ranks[rank] = tuple(_read_rank(files[rank], known, groups, problems, left))
        left -= len(ranks[rank])
    if not any(node.on_device for nodes in ranks.values() for node in nodes):
        raise TraceError(str(folder), "no node of these traces computes or communicates on a device", _REMEDY)
    problems += lonely(ranks, groups)
    warnings = counted(problems)
    if absent := max(files) + 1 - len(files):
        missing = islice((rank for rank in range(max(files)) if rank not in files), MAX_NAMED)
        shown = ", ".join(map(str, missing)) + (", ..." if absent > MAX_NAMED else "")
        warnings.append(Doubt("rank_absent", absent, shown))
    return ChakraTrace(ranks, groups, tuple(warnings))


# --- out ---------------------------------------------------------------------------------------------------


def _messages(
    known: Messages, rank: int, nodes: Iterable[Node], groups: Mapping[str, tuple[int, ...]]
) -> Iterator[Any]:
    nodes = tuple(nodes)
    metadata = known.metadata(version=VERSION)
    metadata.attr.add(name=_NUM_NODES, int64_val=len(nodes))
    yield metadata
    for node in nodes:
        message = known.node(
            id=node.id, name=node.name, type=_type_of(node.kind), data_deps=node.after,
            duration_micros=round(node.duration_s * 1e6),
        )  # fmt: skip
        for name, kind, value in _attributes(node, rank, groups):
            message.attr.add(name=name, **{f"{kind}_val": value})
        yield message


def _type_of(kind: str) -> int:
    special = {"": METADATA_NODE, "send": COMM_SEND_NODE, "recv": COMM_RECV_NODE}
    return special.get(kind, COMM_COLL_NODE if kind in COLLECTIVES else COMP_NODE)


def _attributes(node: Node, rank: int, groups: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str, Any]]:
    """Yield name, type and value of a node's attributes."""
    yield "is_cpu_op", "bool", node.kind == HOST
    yield "duration_s", "double", node.duration_s
    yield "stream", "string", node.stream
    if node.kind in COLLECTIVES:
        yield "comm_type", "int64", COLLECTIVES[node.kind]
        yield "comm_size", "int64", node.num_bytes // _parts(node, groups)
        if node.group:
            yield "pg_name", "string", node.group
    elif node.kind in {"send", "recv"}:
        sender, receiver = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
        yield "comm_src", "int32", sender
        yield "comm_dst", "int32", receiver
        yield "comm_tag", "int32", node.tag
        yield "comm_size", "int64", node.num_bytes
    else:
        yield "num_ops", "int64", node.flop
        yield "tensor_size", "uint64", node.num_bytes


def _parts(node: Node, groups: Mapping[str, tuple[int, ...]]) -> int:
    """Return the divisor of a payload: ``comm_size`` of an all_gather is one rank's part."""
    return len(groups.get(node.group, ())) or 1 if node.kind == "all_gather" else 1


def _framed(message: Any) -> bytes:
    raw: bytes = message.SerializeToString(deterministic=True)
    length, head = len(raw), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + raw


# --- in ----------------------------------------------------------------------------------------------------


def _read_rank(
    path: Path, known: Messages, groups: Mapping[str, tuple[int, ...]], problems: Counter[str], most_nodes: int
) -> Iterator[Node]:
    """Yield the nodes of a rank's file."""
    frames, ids = _frames(path), set[int]()
    try:
        expected = {a.name: a.int64_val for a in known.metadata.FromString(next(frames, b"")).attr}.get(_NUM_NODES)
        for raw in frames:
            node = _node(known.node.FromString(raw), groups, problems)
            if node.id in ids:
                raise TraceError(str(path), f"there are two nodes {node.id}, one is {node.name}", _REMEDY)
            if not 0.0 <= node.duration_s <= MAX_DURATION_S:
                rule = f"node {node.id} ({node.name}) lasts {node.duration_s:g} s: a duration is at most eleven days"
                raise TraceError(str(path), rule, _REMEDY)
            ids.add(node.id)
            if len(ids) > most_nodes:
                raise TraceError(str(path), f"more than {MAX_NODES:,} nodes are not read", "export fewer ranks")
            yield node
    except DecodeError as error:
        raise _damaged(path, str(error)) from error
    if expected not in {None, len(ids)}:
        raise _damaged(path, f"it has {len(ids):,} nodes of {expected:,}")


def _groups(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the ranks of each process group of a file."""
    try:
        for name, ranks in json.loads(_group_text(path)).items():
            yield str(name), tuple(int(rank) for rank in ranks)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise TraceError(str(path), f"the process groups cannot be read: {error}", _REMEDY) from error


def _group_text(path: Path) -> bytes:
    """Return a file's text. Raises ValueError for a file too large for process groups."""
    with _opened(path) as file:
        text = file.read(MAX_GROUPS_BYTES + 1)
    if len(text) > MAX_GROUPS_BYTES:
        raise ValueError(f"the file is larger than the limit of {MAX_GROUPS_BYTES >> 20} MiB")
    return text


def _frames(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file, undecoded."""
    try:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise _damaged(path, "the file is empty")
            while (at := file.tell()) < size:
                length = _length(file)
                if length < 0:
                    raise _damaged(path, f"no message begins at byte {at:,}")
                if length > MAX_MESSAGE_BYTES or file.tell() + length > size:
                    raise _damaged(path, f"a message of {length:,} bytes begins at byte {file.tell():,} of {size:,}")
                yield file.read(length)
    except (OSError, MemoryError) as error:
        raise TraceError(str(path), f"this cannot be read: {str(error).lower()}", _REMEDY) from error


def _length(file: IO[bytes]) -> int:
    """Return the next message length; -1 if the next bytes are no valid length."""
    length = 0
    for shift in range(0, _LENGTH_BITS, 7):
        byte = file.read(1)
        if not byte:
            break
        length |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return length
    return -1


def _opened(path: Path) -> IO[bytes]:
    """Return an opened file, without waiting for pipes. Raises OSError for a path that is no file."""
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    return path.open("rb")


def _damaged(path: Path, problem: str) -> TraceError:
    return TraceError(str(path), f"this is no Chakra trace, or only part of one ({problem})", _REMEDY)


def _node(message: Any, groups: Mapping[str, tuple[int, ...]], problems: Counter[str]) -> Node:
    values: Values = {
        attribute.name: getattr(attribute, attribute.WhichOneof("value"))
        for attribute in message.attr
        if attribute.WhichOneof("value")
    }
    kind = _kind_of(message.type, values, problems)
    duration_s = float(values.get("duration_s", message.duration_micros * 1e-6))
    if kind in COLLECTIVES and duration_s == 0.0 and "duration_s" not in values:
        problems["no_duration"] += 1
    peer = int(values.get("comm_dst" if kind == "send" else "comm_src", NO_RANK))
    size = values.get("comm_size", values.get("tensor_size", 0))
    node = Node(
        id=message.id, name=message.name, kind=kind, after=(*message.data_deps, *message.ctrl_deps),
        duration_s=duration_s, num_bytes=int(size), flop=int(values.get("num_ops", 0)),
        group=str(values.get("pg_name", "")), peer=peer, tag=int(values.get("comm_tag", 0)),
        stream=str(values.get("stream", "")) or ("communication" if kind in _COMMUNICATION else "compute"),
    )  # fmt: skip
    parts = _parts(node, groups)
    return replace(node, num_bytes=node.num_bytes * parts)


def _kind_of(number: int, values: Values, problems: Counter[str]) -> str:
    """Return the kind of a node's type; empty for a type that is ignored."""
    if number == COMP_NODE:
        return HOST if values.get("is_cpu_op") else "compute"
    if number == COMM_SEND_NODE:
        return "send"
    if number == COMM_RECV_NODE:
        return "recv"
    if number in _MEMORY_NODES:
        return "memcpy"
    if number == COMM_COLL_NODE and int(values.get("comm_type", 0)) in _KINDS:
        return _KINDS[int(values.get("comm_type", 0))]
    if number != METADATA_NODE:
        problems["other_node"] += 1
    return ""
