"""Recorded lookups of embedding tables: a row per sample, a column per table.

CSV and Parquet files name their columns; cells are numbers of rows, from 0. Files that end with ``.tsv`` or ``.txt``
are those of Criteo's data sets: no names, a tab between the label, 13 numbers and 26 categories C1 to C26 of
hexadecimal digits. A category is a row of its table by its remainder, and row 0 where it is missing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from traces.bounded_parquet import TooLargeError, read_bounded
from traces.errors import TraceError

MAX_BYTES: Final = 1 << 30
MAX_SAMPLES: Final = 50_000_000
CRITEO: Final = ("label", *(f"I{place}" for place in range(1, 14)), *(f"C{place}" for place in range(1, 27)))
_WHOLE: Final = r"^[0-9]{1,9}$"
_HEXADECIMAL: Final = r"^[0-9a-fA-F]{0,8}$"


def read_lookups(path: Path, num_rows: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the row that each sample reads of each table, [samples, tables]; ``num_rows``: rows of tables, by name.

    Raises TraceError, with the line, for a file that cannot be read, has no column for a table, or a cell that is no
    row of its table.
    """
    is_criteo = path.suffix in {".tsv", ".txt"}
    table = _from_parquet(path, num_rows) if path.suffix == ".parquet" else _from_text(path, num_rows, is_criteo)
    if not table.num_rows:
        raise TraceError(str(path), "the file has no samples", "name a longer trace")
    found = np.empty((table.num_rows, len(num_rows)), dtype=np.int64)
    first_line = 0 if path.suffix == ".parquet" else 1 if is_criteo else 2
    for place, (name, limit) in enumerate(num_rows.items()):
        cells = table.column(name)
        if is_criteo:
            found[:, place] = _categories(path, cells, name) % limit
        else:
            found[:, place] = _numbers(path, cells, name, first_line)
            _refuse(
                path, found[:, place] < limit, found[:, place], f"is no row of a table of {limit:,}", name, first_line
            )
    return found


def _from_text(path: Path, names: Mapping[str, int], is_criteo: bool) -> pa.Table:
    """Return the columns of tables as text."""
    if is_criteo and (unknown := next((name for name in names if name not in CRITEO[14:]), None)) is not None:
        raise TraceError(str(path), f"{unknown} is no category of Criteo's files", "name tables C1 to C26")
    reading = csv.ReadOptions(column_names=list(CRITEO) if is_criteo else None)
    parsing = csv.ParseOptions(delimiter="\t" if is_criteo else ",", ignore_empty_lines=False)
    converting = csv.ConvertOptions(
        include_columns=list(names), column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
    )
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(str(path), f"the file has more than {MAX_BYTES / 2**20:,.0f} MiB", "name a shorter trace")
        return csv.read_csv(path, reading, parsing, converting)
    except KeyError as error:
        raise TraceError(str(path), f"there is no column {_missing(error)}", "name a column for each table") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise TraceError(
            str(path), f"the file cannot be read: {error}", "name a CSV, Parquet or Criteo file"
        ) from error


def _missing(error: KeyError) -> str:
    """Return the name in pyarrow's message: Column 'users' in include_columns does not exist in CSV file."""
    return str(error.args[0]).split("'")[1] if "'" in str(error.args[0]) else str(error.args[0])


def _from_parquet(path: Path, names: Mapping[str, int]) -> pa.Table:
    """Return the columns of tables."""
    try:
        with pq.ParquetFile(path) as file:
            missing = next((name for name in names if name not in file.schema_arrow.names), None)
            if missing is not None:
                raise TraceError(str(path), f"there is no column {missing}", "name a column for each table")
            return read_bounded(file, list(names), MAX_SAMPLES, MAX_BYTES)
    except TooLargeError as error:
        raise TraceError(str(path), f"the file is too large: {error}", "name a shorter trace") from error
    except (OSError, pa.ArrowException) as error:
        raise TraceError(str(path), f"the file cannot be read: {error}", "name a Parquet file") from error


def _numbers(path: Path, cells: pa.ChunkedArray, name: str, first_line: int) -> NDArray[np.int64]:
    """Return whole numbers from 0."""
    if pa.types.is_integer(cells.type):
        if cells.null_count:
            raise TraceError(str(path), f"{cells.null_count:,} cells are empty", "write a number of a row", key=name)
        found: NDArray[np.int64] = cells.cast(pa.int64()).to_numpy()
        _refuse(path, found >= 0, found, "is no number of a row", name, first_line)
        return found
    if not pa.types.is_string(cells.type):
        raise TraceError(str(path), f"the column has cells of type {cells.type}", "write whole numbers", key=name)
    _refuse_text(path, cells, _WHOLE, "is no number of a row", name, first_line)
    numbers: NDArray[np.int64] = cells.cast(pa.int64()).to_numpy()
    return numbers


def _categories(path: Path, cells: pa.ChunkedArray, name: str) -> NDArray[np.int64]:
    """Return hexadecimal numbers, 0 for a missing one. Each different one is read once."""
    _refuse_text(path, cells, _HEXADECIMAL, "is no category of up to 8 hexadecimal digits", name, 1)
    encoded = cells.combine_chunks().dictionary_encode()
    values = np.array([int(text or "0", 16) for text in encoded.dictionary.to_pylist()], dtype=np.int64)
    found: NDArray[np.int64] = values[encoded.indices.to_numpy()]
    return found


def _refuse_text(path: Path, cells: pa.ChunkedArray, pattern: str, rule: str, name: str, first_line: int) -> None:
    is_right = pc.match_substring_regex(cells, pattern).to_numpy().astype(np.bool_)
    _refuse(path, is_right, cells, rule, name, first_line)


def _refuse(
    path: Path,
    is_right: NDArray[np.bool_],
    cells: pa.ChunkedArray | NDArray[np.int64],
    rule: str,
    name: str,
    first_line: int,
) -> None:
    """Raise TraceError for the first cell that breaks a rule; ``first_line``: that of the first sample, 0 for none."""
    if is_right.all():
        return
    place = int(np.argmin(is_right))
    line = place + first_line if first_line else 0
    where = "" if first_line else f"sample {place}: "
    rule, remedy = f"{where}{str(cells[place])[:40]!r} {rule}", "write rows from 0, or a larger num_rows"
    raise TraceError(str(path), rule, remedy, line=line, key=name)
