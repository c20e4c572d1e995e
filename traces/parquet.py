"""Timelines as Parquet files: one row per op; roles and memory of the ranks are in the file's metadata.

Rows of several ranks that belong together share a number in the column ``transfer``. A row of a period stands for
``repeats`` ops. The k-th, from 0, starts k ``period_s`` later, and its micro-batch is k ``period_microbatches`` further
on. Identical timelines give identical bytes.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import asdict
from numpy.typing import NDArray

from traces.bounded_parquet import TooLargeError, read_bounded
from traces.errors import TraceError
from traces.files import replacing
from traces.timeline import COLUMNS, Period, Timeline, TimelineBuilder, Words
from traces.unrolling import DURING

SCHEMA_NAME: Final = "meshtwin.timeline/3"
ROWS_PER_GROUP: Final = 1 << 20
MAX_MEMORY_POINTS: Final = 1 << 20
"""Limit of points of the memory curves in a file's metadata; longer curves are thinned, keeping every peak."""

MAX_PACKED_BYTES: Final = 1 << 28
"""Size limit of one column of the memory curves; a larger one is damaged."""

MAX_ROWS: Final = 1 << 25
"""Limit of rows that are read: they take about 8 GiB."""
MAX_BYTES: Final = 3 << 30
"""Limit of bytes of all columns, unpacked, that are read."""
MAX_INT32: Final = 2**31 - 1

_METADATA_KEY: Final = b"meshtwin"
_REMEDY: Final = "name a timeline.parquet that simulate wrote with --out"
_WORD_TYPE: Final = pa.dictionary(pa.int32(), pa.string())
TRANSFER: Final = "transfer"
REPETITION: Final = ("repeats", "period_s", "period_microbatches")
FILE_COLUMNS: Final = (*COLUMNS, *REPETITION, TRANSFER)
_TYPES: Final = {
    "rank": pa.int32(), "stream": _WORD_TYPE, "name": _WORD_TYPE, "kind": _WORD_TYPE, "start_s": pa.float64(),
    "end_s": pa.float64(), "microbatch": pa.int32(), "stage": pa.int32(), "bytes": pa.int64(), "flop": pa.float64(),
    "group": _WORD_TYPE, "repeats": pa.int32(), "period_s": pa.float64(), "period_microbatches": pa.int32(),
    "transfer": pa.int64(),
}  # fmt: skip


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write one row per op, sorted by rank, start and end, with the columns of ``FILE_COLUMNS``."""
    schema = pa.schema([(column, _TYPES[column]) for column in FILE_COLUMNS], {_METADATA_KEY: _metadata(timeline)})
    options = {"compression": "zstd", "use_dictionary": _word_columns(), "write_statistics": True}
    with (
        replacing(path) as temporary,
        temporary.open("wb") as file,
        pq.ParquetWriter(file, schema, **options) as writer,
    ):
        for table in _tables(timeline, schema):
            writer.write_table(table)


def read_timeline(path: Path) -> Timeline:
    """Return the timeline of a file.

    Raises TraceError for a file that is missing, cut off, no Parquet, or no timeline of this schema.
    """
    if not path.is_file():
        rule = "this is not a file" if path.exists() else "there is no such file"
        rule = "this is a directory, not a file" if path.is_dir() else rule
        raise TraceError(str(path), rule, _REMEDY)
    try:
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            metadata = _read_metadata(path, file.schema_arrow)
            table = read_bounded(file, FILE_COLUMNS, MAX_ROWS, MAX_BYTES)
        return _timeline(path, table, metadata)
    except TraceError:
        raise
    except TooLargeError as error:
        raise TraceError(str(path), f"the timeline has {error}", "write it with --detail task, or of less") from error
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:  # the last two: invalid text and codes
        problem = str(error).split("\n", maxsplit=1)[0][:200]
        rule = f"this is not a Parquet file, or only part of one ({problem})"
        raise TraceError(str(path), rule, _REMEDY) from error


def _word_columns() -> list[str]:
    return [column for column in COLUMNS if _TYPES[column] is _WORD_TYPE]


def _tables(timeline: Timeline, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in pieces of one row group each (one empty piece of an empty timeline)."""
    transfer = timeline.messages.numbers(len(timeline))
    repetition = _repetition(timeline.start_s, timeline.period)
    for start in range(0, max(1, len(timeline)), ROWS_PER_GROUP):
        rows = slice(start, start + ROWS_PER_GROUP)
        columns = [*(getattr(timeline, column) for column in COLUMNS), *repetition, transfer]
        yield pa.table([_arrow(column, rows) for column in columns], schema=schema)


def _repetition(start_s: NDArray[np.float64], period: Period | None) -> tuple[NDArray[Any], ...]:
    """Return the columns of ``REPETITION``."""
    repeats = np.zeros(len(start_s), dtype=np.bool_) if period is None else period.part(start_s) == DURING
    values = (1, 0.0, 0) if period is None else (period.count, period.length_s, period.microbatches)
    alone = (1, 0.0, 0)
    types = (np.int32, np.float64, np.int32)
    return tuple(np.where(repeats, value, one).astype(t) for value, one, t in zip(values, alone, types, strict=True))


def _arrow(column: Words | NDArray[Any], rows: slice) -> pa.Array:
    if isinstance(column, Words):
        return pa.DictionaryArray.from_arrays(pa.array(column.codes[rows]), pa.array(column.values, pa.string()))
    return pa.array(column[rows])


def _metadata(timeline: Timeline) -> bytes:
    """Return the facts that rows do not hold, as JSON; memory curves as packed arrays."""
    curve = timeline.memory
    if len(curve) > MAX_MEMORY_POINTS:
        curve = curve.thinned(max(3, MAX_MEMORY_POINTS // max(1, len(timeline.ranks))))
    content = {
        "schema": SCHEMA_NAME,
        "source": timeline.source,
        "detail": timeline.detail,
        "period": None if timeline.period is None else asdict(timeline.period),
        "ranks": [[info.rank, info.role, info.num_ranks] for info in timeline.ranks],
        "memory": {key: _packed(getattr(curve, key)) for key in ("rank", "time_s", "bytes")},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _packed(values: NDArray[Any]) -> str:
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return base64.b85encode(zlib.compress(raw, 6)).decode()


def _unpacked(text: str, dtype: str) -> NDArray[Any]:
    """Return an array. Raises ValueError for one that is larger than any that is written."""
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(base64.b85decode(text), MAX_PACKED_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        message = "an array is too large or cut off"
        raise ValueError(message)
    return np.frombuffer(raw, dtype=dtype)


def _read_metadata(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the file's metadata. Raises TraceError unless it is a timeline with all columns."""
    content: Any = None
    try:
        content = json.loads((schema.metadata or {}).get(_METADATA_KEY, b"null"))
    except (ValueError, RecursionError) as error:
        raise TraceError(str(path), "the metadata of this timeline is not JSON", _REMEDY) from error
    if not isinstance(content, dict):
        raise TraceError(str(path), "this is a Parquet file, but no timeline of meshtwin", _REMEDY)
    if content.get("schema") != SCHEMA_NAME:
        rule = f"the schema is {str(content.get('schema'))[:60]!r}, expected {SCHEMA_NAME!r}"
        raise TraceError(str(path), rule, "write it again with this version of simulate")
    for column in FILE_COLUMNS:
        index = schema.get_field_index(column)
        found = schema.field(index).type if index >= 0 else None
        if found != _TYPES[column]:
            rule = f"the column must be {_TYPES[column]}, it is {found or 'missing'}"
            raise TraceError(str(path), rule, _REMEDY, key=column)
    return content


def _timeline(path: Path, table: pa.Table, metadata: dict[str, Any]) -> Timeline:
    _check_values(path, table)
    try:
        builder = TimelineBuilder(source=metadata["source"], detail=metadata["detail"])
        builder.period = _period(metadata["period"])
        for rank, role, num_ranks in metadata["ranks"]:
            builder.add_rank(int(rank), str(role), int(num_ranks))
        memory = metadata["memory"]
        ranks = _unpacked(memory["rank"], "<i4")
        times, held = _unpacked(memory["time_s"], "<f8"), _unpacked(memory["bytes"], "<i8")
        for rank in np.unique(ranks):
            builder.add_memory(int(rank), times[ranks == rank], held[ranks == rank])
    except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise TraceError(str(path), f"the metadata of this timeline is damaged ({error!r})", _REMEDY) from error
    _check_ranks(path, table, {info[0] for info in metadata["ranks"]})
    _check_repetition(path, table, builder.period)
    columns = {column: _from_arrow(table.column(column)) for column in COLUMNS}
    columns["num_bytes"] = columns.pop("bytes")
    builder.extend(**columns)
    codes, words = columns["kind"]
    builder.extend_transfers(_from_arrow(table.column(TRANSFER)), Words(codes, tuple(words)))
    return builder.build()


def _check_values(path: Path, table: pa.Table) -> None:
    """Raise TraceError for empty cells, ops that end before they start or never, and amounts that no op can have."""
    for column in FILE_COLUMNS:
        if table.column(column).null_count:
            raise TraceError(str(path), "every row needs a value, some have none", _REMEDY, key=column)
    starts, ends = table.column("start_s"), table.column("end_s")
    finite = pc.all(pc.and_(pc.is_finite(starts), pc.is_finite(ends))).as_py()
    if finite is False or pc.all(pc.greater_equal(ends, starts)).as_py() is False:
        raise TraceError(str(path), "an op must end after it starts, at a finite time", _REMEDY, key="end_s")
    for column in ("bytes", "flop"):
        values = table.column(column)
        if pc.all(pc.and_(pc.is_finite(values), pc.greater_equal(values, 0))).as_py() is False:
            raise TraceError(str(path), "an op moves and computes a finite amount, 0 or more", _REMEDY, key=column)


def _period(content: Any) -> Period | None:
    """Return the period in the metadata. Raises an error of Python's for an impossible one."""
    if content is None:
        return None
    begin_s, length_s, count, microbatches = (content[name] for name in Period.__struct_fields__)
    period = Period(float(begin_s), float(length_s), int(count), int(microbatches))
    is_finite = math.isfinite(period.begin_s) and math.isfinite(period.end_s + period.later_s)
    fits = 1 < period.count <= MAX_INT32 and 0 <= period.count * period.microbatches <= MAX_INT32
    if not (is_finite and fits and period.length_s > 0.0):
        message = f"no step has a period of {content}"
        raise ValueError(message)
    return period


def _check_repetition(path: Path, table: pa.Table, period: Period | None) -> None:
    """Raise TraceError for rows whose repetition contradicts the file's period."""
    expected = _repetition(table.column("start_s").to_numpy(), period)
    for column, values in zip(REPETITION, expected, strict=True):
        if not np.array_equal(table.column(column).to_numpy(), values):
            rule = "repeated rows start outside the period in the metadata, or repeat another number of times"
            raise TraceError(str(path), rule, _REMEDY, key=column)


def _check_ranks(path: Path, table: pa.Table, named: set[int]) -> None:
    """Raise TraceError for rows of a rank that the metadata do not name."""
    unknown = sorted(set(pc.unique(table.column("rank")).to_pylist()) - named)
    if unknown:
        raise TraceError(str(path), f"rank {unknown[0]} is missing in the metadata", _REMEDY, key="rank")


def _from_arrow(column: pa.ChunkedArray) -> Any:
    if column.type == _WORD_TYPE:
        whole = column.unify_dictionaries().combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], _WORD_TYPE)
        return whole.indices.to_numpy(zero_copy_only=False), whole.dictionary.to_pylist()
    return column.to_numpy()
