"""Recorded routing in files: CSV or Parquet with a row per step, layer, source rank and expert.

    step,layer,source_rank,expert,tokens
    0,0,0,0,154
    0,0,0,1,12

``tokens`` counts the choices of one micro-batch of the source rank, before any is dropped. Rows of no tokens may be
left out. Layers may have any numbers; steps, source ranks and experts are counted from 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sim.moe.recorded import RecordedRouting
from traces.bounded_parquet import TooLargeError, read_bounded
from traces.errors import TraceError
from traces.files import replacing

COLUMNS: Final = ("step", "layer", "source_rank", "expert", "tokens")
MAX_ROWS: Final = 1 << 24
MAX_BYTES: Final = 1 << 30
_PARQUET: Final = ".parquet"
_REMEDY: Final = f"name a CSV or Parquet file with the columns {', '.join(COLUMNS)}"
_NUMBERS: Final = "write whole numbers, 0 or more"


def write_routing(path: Path, recorded: RecordedRouting) -> None:
    """Write a recorded routing, as Parquet or CSV by the name of the file."""
    table = pa.table(dict(zip(COLUMNS, recorded.columns, strict=True)))
    with replacing(path) as temporary:
        if path.suffix == _PARQUET:
            pq.write_table(table, temporary, compression="zstd")
        else:
            with temporary.open("wb") as file:
                file.write(",".join(COLUMNS).encode() + b"\n")
                pv.write_csv(table, file, pv.WriteOptions(include_header=False))


def read_routing(path: Path) -> RecordedRouting:
    """Return what a file holds. Raises TraceError, with the line, for one that cannot be read or breaks a rule."""
    if not path.is_file():
        rule = "this is a directory, not a file" if path.is_dir() else "there is no such file"
        raise TraceError(str(path), rule, _REMEDY)
    table = _from_parquet(path) if path.suffix == _PARQUET else _from_csv(path)
    for name in COLUMNS:
        if table[name].null_count:
            line = table[name].is_null().index(pa.scalar(value=True)).as_py() + 1
            raise TraceError(str(path), f"row {line} holds no number", _NUMBERS, key=name)
    columns = np.stack([np.asarray(table[name].combine_chunks(), dtype=np.int64) for name in COLUMNS])
    is_csv = path.suffix != _PARQUET
    _check(path, columns, first_line=2 if is_csv else 1)
    order = np.lexsort(columns[3::-1])
    columns = columns[:, order]
    same = np.all(columns[:4, 1:] == columns[:4, :-1], axis=0)
    if same.any():
        again = int(order[1:][same][0])
        step, layer, source, expert = columns[:4, 1:][:, same][:, 0].tolist()
        rule = f"step {step}, layer {layer}, source rank {source}, expert {expert} stands here again"
        raise TraceError(str(path), rule, "write one row for each", line=again + (2 if is_csv else 1))
    return RecordedRouting(str(path), columns)


def _check(path: Path, columns: NDArray[np.int64], first_line: int) -> None:
    """Raise TraceError for a file without rows, and for numbers out of their range."""
    if not columns.shape[1]:
        raise TraceError(str(path), "the file has no rows", _REMEDY)
    for name, values in zip(COLUMNS, columns, strict=True):
        most = MAX_ROWS if name != "tokens" else 2**40
        bad = np.flatnonzero((values < 0) | (values > most))
        if len(bad):
            rule = f"{values[bad[0]]} is not a number from 0 to {most:,}"
            raise TraceError(str(path), rule, _NUMBERS, line=int(bad[0]) + first_line, key=name)


def _from_parquet(path: Path) -> pa.Table:
    try:
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            _check_names(path, file.schema_arrow.names)
            table = read_bounded(file, COLUMNS, MAX_ROWS, MAX_BYTES)
            return table.cast(pa.schema([(name, pa.int64()) for name in COLUMNS]))
    except TooLargeError as error:
        raise TraceError(str(path), str(error), "record fewer steps") from error
    except (pa.ArrowException, OSError) as error:
        rule = f"no Parquet file of whole numbers: {str(error).splitlines()[0][:200]}"
        raise TraceError(str(path), rule, _REMEDY) from error


def _from_csv(path: Path) -> pa.Table:
    size = path.stat().st_size
    if size > MAX_BYTES:
        rule = f"the file has {size / 2**20:,.0f} MiB, where {MAX_BYTES / 2**20:,.0f} MiB are the most that is read"
        raise TraceError(str(path), rule, "record fewer steps, or write Parquet")
    try:
        with path.open("rb") as file:
            _check_names(path, file.readline(1000).decode("utf-8-sig", "replace").strip().split(","))
        types = dict.fromkeys(COLUMNS, pa.int64())
        return pv.read_csv(path, convert_options=pv.ConvertOptions(column_types=types, include_columns=list(COLUMNS)))
    except (pa.ArrowException, OSError) as error:
        raise _csv_error(path) from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    wrong = next((name for name in COLUMNS if names.count(name) != 1), None)
    if wrong is not None:
        rule = f"the column {wrong} is {'there twice' if wrong in names else 'missing'}"
        raise TraceError(str(path), rule, _REMEDY, line=0 if path.suffix == _PARQUET else 1)


def _csv_error(path: Path) -> TraceError:
    """Return the error of the first line that is no row of whole numbers."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = file.readline().strip().split(",")
        for line, text in enumerate(file, 2):
            cells = text.rstrip("\r\n").split(",")
            if len(cells) != len(names):
                rule = f"{len(cells)} cells, where the first line names {len(names)} columns"
                return TraceError(str(path), rule, "write a cell for each column", line=line)
            for name, cell in zip(names, cells, strict=True):
                if name in COLUMNS and not (cell.strip().lstrip("-").isascii() and cell.strip().lstrip("-").isdigit()):
                    return TraceError(str(path), f"{cell[:60]!r} is no whole number", _NUMBERS, line=line, key=name)
                if name in COLUMNS and len(cell) > 18:
                    return TraceError(str(path), f"{cell[:60]} is too large", _NUMBERS, line=line, key=name)
    return TraceError(str(path), "it is no CSV file", _REMEDY)
