"""The events of one file of the PyTorch profiler, decoded but not interpreted.

The format is Chrome's trace event format (Google 2016) with Kineto's arguments. Only the fields named here are decoded;
the others are skipped, so a million events take seconds and less than a gigabyte.
"""

import gzip
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
from msgspec import Struct

from traces.errors import TraceError
from traces.kineto.inflating import InflatedFile, PlainFile

MAX_BYTES: Final = 4 << 30
"""Size limit of one file, decompressed."""
MAX_MEMBERS: Final = 100_000
"""Limit of members of a tar archive."""
_LEAST_PART_BYTES: Final = 6
_FEW_PARTS: Final = 5_000_000
"""Number of objects and lists that always take little memory."""
SUFFIXES: Final = (".json", ".json.gz")
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz")
REMEDY: Final = (
    "name a trace that torch.profiler wrote (.json or .json.gz), or a folder or tar archive of nothing but these, one "
    "per rank"
)
_CUT_OFF: Final = "it was cut off while it was written or copied: get a whole copy"
_NULL: Final = "write null in its place"
_CHUNK_BYTES: Final = 16 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_OTHER_FORMATS: Final = {
    _GZIP_MAGIC: "compressed twice", b"PK\3\4": "a zip archive", b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz", b"(\xb5/\xfd": "compressed by zstd", b"PAR1": "a Parquet file",
    b"\xff\xfe": "text of UTF-16 or UTF-32", b"\xfe\xff": "text of UTF-16",
}  # fmt: skip
"""The kinds of files, by their first bytes."""
_MAX_DIGITS: Final = 19
MAX_WHOLE: Final = (1 << 62) - 1
NO_CORRELATION: Final = -1
_NO_NUMBER: Final = re.compile(rb"-?(nan|inf(inity)?)\b", re.IGNORECASE)


class Arguments(msgspec.Struct, gc=False):
    """The used arguments of an event, unchecked; None if missing.

    Shapes and types stay undecoded, since few are used.
    """

    stream: Any = None
    queue: Any = msgspec.field(default=None, name="sycl queue")
    device: Any = None
    correlation: Any = None
    waits_for_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    waits_for_record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    num_bytes: Any = msgspec.field(default=None, name="bytes")
    collective: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    first_rank: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    sequence: Any = msgspec.field(default=None, name="Seq")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    target_rank: Any = msgspec.field(default=None, name="Dst Rank")
    input_dims: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="Input type")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")
    allocated_bytes: Any = msgspec.field(default=None, name="Total Allocated")


class Event(msgspec.Struct, gc=False):
    """One event; times are microseconds of the file's clock."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    tid: Any = None
    args: Arguments | None = None


class Document(msgspec.Struct, gc=False):
    """The contents of one file."""

    events: list[Event] | None = msgspec.field(default=None, name="traceEvents")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_time_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    other: Any = msgspec.field(default=None, name="otherData")


_DECODER: Final = msgspec.json.Decoder(Document | list[Event])
"""A file is an object, or just the list of its events, by Chrome's format."""


def whole(value: Any, most: int) -> int:
    """Return a whole number from 0 to ``most``, also from text; -1 for anything else."""
    if type(value) is int:
        return value if 0 <= value <= most else -1
    written = isinstance(value, str) and len(value) <= _MAX_DIGITS and value.isascii() and value.isdecimal()
    return whole(int(value), most) if written else -1


def correlation_of(event: Event) -> int:
    """Return the number shared by a call and the activity it launched; NO_CORRELATION if it is missing or 0."""
    number = whole(event.args.correlation, MAX_WHOLE) if event.args is not None else NO_CORRELATION
    return number or NO_CORRELATION


class Source(Struct, frozen=True):
    """A file, or a file inside an archive, that may hold one rank's trace."""

    name: str
    read: Callable[[], bytes | bytearray]


@contextmanager
def sources(path: Path) -> Iterator[list[Source]]:
    """Yield the sources at ``path``: a file, a folder's traces, or those of a tar archive, by name.

    Raises TraceError if nothing there could be a trace.
    """
    if _is_folder(path):
        yield _in_folder(path)
    elif path.name.endswith(ARCHIVES):
        with _opened_archive(path) as archive:
            yield _in_archive(path, archive)
    else:
        yield [Source(str(path), lambda: _file_bytes(path))]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # a folder without permission
        raise _unreadable(str(path), error) from error


def decode(source: Source) -> Document:
    """Return a file's events, without gzip. Raises TraceError for a file that is cut off, damaged or no such trace."""
    try:
        return _decoded(source.name, _decompressed(source.name, source.read()))
    except MemoryError as error:
        rule = "this takes more memory than there is"
        raise TraceError(source.name, rule, "record fewer steps, or without shapes and stacks") from error


def _decoded(name: str, raw: bytes | bytearray) -> Document:
    _refuse_dense(name, raw)
    if not raw or raw.isspace():
        raise TraceError(name, "the file is empty", REMEDY)
    if other := _other_format(raw):
        raise TraceError(name, f"this is {other}, not JSON (UTF-8 text, gzipped or not)", REMEDY)
    try:
        decoded = _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):
            rule = str(error).replace("Number out of range - at", "a number is too large for a file of JSON, at")
            raise TraceError(name, rule, _NULL) from error
        rule = f"this is JSON, but no trace of the PyTorch profiler ({error})"
        raise TraceError(name, rule, REMEDY) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(name, raw, error) from error
    document = decoded if isinstance(decoded, Document) else Document(decoded)
    if document.events is None:
        raise TraceError(name, "there is no traceEvents in this file", REMEDY)
    if not document.events:
        rule = "traceEvents is empty: nothing was recorded"
        raise TraceError(name, rule, "record at least one step while the profiler is active")
    return document


def _refuse_dense(name: str, raw: bytes | bytearray) -> None:
    """Raise TraceError for more objects than a trace of this size has. They take many times the text's memory."""
    count = raw.count(b"{") + raw.count(b"[")
    if count > _FEW_PARTS and count * _LEAST_PART_BYTES > len(raw):
        rule = (
            f"there are {count:,} objects and lists in {len(raw):,} bytes, "
            f"and the limit is one for every {_LEAST_PART_BYTES} bytes"
        )
        raise TraceError(name, rule, REMEDY)


def _no_json(name: str, raw: bytes | bytearray, error: Exception) -> TraceError:
    """Return the refusal of bytes that are not JSON, with the line."""
    if "truncated" in str(error):
        return TraceError(name, "the JSON ends in the middle", _CUT_OFF, line=raw.count(b"\n") + 1)
    if isinstance(error, UnicodeDecodeError):
        return _no_text(name, raw)
    found = re.search(r"byte (\d+)", str(error))
    position = int(found[1]) if found else 0
    rule, remedy = f"this is not JSON: {str(error).removeprefix('JSON is malformed: ')}", REMEDY
    if number := _NO_NUMBER.match(raw, position - (raw[position - 1 : position] == b"-")):
        rule = f"this is not JSON: {number[0].decode()} (byte {position}) is no number there"
        remedy = _NULL
    return TraceError(name, rule, remedy, line=raw.count(b"\n", 0, position) + 1)


def _no_text(name: str, raw: bytes | bytearray) -> TraceError:
    """Return the refusal of JSON with a string that is not UTF-8, with the line."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        rule = f"this is not text of UTF-8 (byte {error.start})"
        line = raw.count(b"\n", 0, error.start) + 1
        return TraceError(name, rule, "convert it, as iconv does: iconv -f latin1 -t utf-8", line=line)
    return TraceError(name, "this is not JSON: half a character in a string", REMEDY)


def _in_folder(folder: Path) -> list[Source]:
    try:
        paths = sorted(
            entry for entry in folder.iterdir()
            if entry.name.endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file()
        )  # fmt: skip
    except OSError as error:
        raise _unreadable(str(folder), error) from error
    if not paths:
        rule = "no file of this folder ends in .json or .json.gz"
        raise TraceError(str(folder), rule, next(_folders_of_traces(folder), REMEDY))
    return [Source(str(path), partial(_file_bytes, path)) for path in paths]


def _folders_of_traces(folder: Path) -> Iterator[str]:
    """Yield remedies: the folders within a folder that hold possible traces, by name."""
    for inner in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        with suppress(OSError):
            if any(entry.name.endswith(SUFFIXES) for entry in inner.iterdir()):
                yield f"there are some in {inner}: name that"


@contextmanager
def _opened_archive(path: Path) -> Iterator[tarfile.TarFile]:
    if path.exists() and not path.is_file():
        raise TraceError(str(path), "an archive must be a file", REMEDY)
    with ExitStack() as opened:
        try:
            raw = opened.enter_context(path.open("rb"))
            begin = raw.read(tarfile.BLOCKSIZE)
            raw.seek(0)
            is_packed = begin.startswith(_GZIP_MAGIC)
            if not is_packed and (other := _other_format(begin)):
                rule = f"this is {other}, not a tar archive (gzipped or not)"
                raise TraceError(str(path), rule, REMEDY)
            file = InflatedFile(str(path), raw) if is_packed else PlainFile(str(path), raw)
            opened.callback(file.close)
            archive = opened.enter_context(tarfile.open(fileobj=cast("IO[bytes]", file), mode="r:"))
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise _unreadable(str(path), error) from error
            raise TraceError(str(path), f"this is no whole tar archive ({error})", _CUT_OFF) from error
        yield archive


def _other_format(raw: bytes | bytearray) -> str:
    """Return the format of another file by its first bytes; empty if unknown."""
    return next((words for prefix, words in _OTHER_FORMATS.items() if raw.startswith(prefix)), "")


def _in_archive(path: Path, archive: tarfile.TarFile) -> list[Source]:
    """Return the traces in an archive, in its order, since a compressed one is read from beginning to end."""
    members = []
    try:
        for number, member in enumerate(archive):
            if number >= MAX_MEMBERS:
                rule = f"the archive has more than {MAX_MEMBERS:,} members, the most that is read"
                raise TraceError(str(path), rule, REMEDY)
            if member.isfile() and member.name.endswith(SUFFIXES):
                members.append(member)
        end = _block_at(archive, archive.offset)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise TraceError(str(path), f"this is no whole tar archive ({error})", _CUT_OFF) from error
    if end != tarfile.NUL * tarfile.BLOCKSIZE:  # what follows the last member: without it some may be missing
        raise TraceError(str(path), "this is no whole tar archive (its end is missing)", _CUT_OFF)
    if not members:
        raise TraceError(str(path), "no file in this archive ends in .json or .json.gz", REMEDY)

    def reader(member: tarfile.TarInfo) -> Callable[[], bytes | bytearray]:
        def read() -> bytes | bytearray:
            name = f"{path}/{member.name}"
            if member.issparse():
                raise TraceError(name, "the archive leaves holes in this file", "pack it without --sparse")
            try:
                return _limited(name, archive.extractfile(member) or _nothing())
            except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
                raise TraceError(name, f"the archive is damaged ({error})", _CUT_OFF) from error

        return read

    return [Source(f"{path}/{member.name}", reader(member)) for member in members]


def _block_at(archive: tarfile.TarFile, offset: int) -> bytes:
    """Return a block of an archive, or the rest of it."""
    file = archive.fileobj or _nothing()
    file.seek(offset)
    return file.read(tarfile.BLOCKSIZE)


def _nothing() -> IO[bytes]:
    raise tarfile.ReadError("a member without content")


def _file_bytes(path: Path) -> bytes | bytearray:
    """Return a file's bytes; a pipe without a writer opens without waiting, and is empty."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            _refuse_device(path, file)
            os.set_blocking(file.fileno(), True)
            return _limited(str(path), file)
    except TraceError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), error) from error


def _refuse_device(path: Path, file: IO[bytes]) -> None:
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
        raise TraceError(str(path), "this is a device, not a file", REMEDY)


def _unreadable(name: str, error: Exception) -> TraceError:
    if isinstance(error, FileNotFoundError):
        return TraceError(name, "there is no such file or folder", REMEDY)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return TraceError(name, f"this cannot be read: {reason.lower()}", REMEDY)


def _limited(name: str, file: IO[bytes] | InflatedFile) -> bytes | bytearray:
    """Return all bytes of a file; of a file that begins unlike any trace only the beginning, which identifies it.

    Raises TraceError beyond MAX_BYTES.
    """
    content = bytearray()
    while piece := file.read(_CHUNK_BYTES):
        if not content and not _begins_a_trace(piece):
            return piece
        content += piece
        if len(content) > MAX_BYTES:
            rule = f"the trace is larger than {MAX_BYTES >> 30} GiB, the most that is read"
            raise TraceError(name, rule, "record fewer steps, or without shapes and stacks")
    return content


def _begins_a_trace(piece: bytes) -> bool:
    return piece.startswith(_GZIP_MAGIC) or piece.removeprefix(_UTF8_MARK).lstrip()[:1] in {b"{", b"["}


def _decompressed(name: str, raw: bytes | bytearray) -> bytes | bytearray:
    """Return the bytes without gzip and byte order mark, where there is any."""
    if raw.startswith(_GZIP_MAGIC):
        try:
            with closing(InflatedFile(name, BytesIO(raw))) as file:
                raw = _limited(name, file)
        except EOFError as error:
            raise TraceError(name, "the gzip file is not whole", _CUT_OFF) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(name, f"the gzip file is damaged ({error})", _CUT_OFF) from error
    return raw[len(_UTF8_MARK) :] if raw.startswith(_UTF8_MARK) else raw
