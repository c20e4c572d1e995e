"""Rows of CSV files by the names of their columns, and their numbers; what is wrong is refused with its line."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from traces.errors import TraceError

Row = Mapping[str, str]
T = TypeVar("T")


def read_file(path: Path, most_bytes: int, remedy: str, read: Callable[[TextIO], T]) -> T:
    """Return what ``read`` makes of a text file. Raises TraceError for a large file, and one that is no text."""
    try:
        if path.stat().st_size > most_bytes:
            raise TraceError(str(path), f"the file has more than {most_bytes / 2**20:,.0f} MiB", "write fewer jobs")
        with path.open(newline="", encoding="utf-8-sig") as file:
            return read(file)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), f"the file cannot be read: {error}", remedy) from error


def csv_rows(
    path: Path, file: TextIO, columns: Sequence[str], remedy: str, names: Sequence[str] = (), *, headed: bool = True
) -> Iterator[tuple[int, Row]]:
    """Yield line and cells by column. The first line, where a file is ``headed``, names them, unless ``names`` does.

    Raises TraceError, with the line, for a column that is missing or there twice, and a row of another length.
    """
    lines = csv.reader(file)
    try:
        head = next(lines, []) if headed else []
        found = list(names) or [name.strip() for name in head]
        wrong = next((name for name in columns if found.count(name) != 1), None)
        if wrong is not None:
            rule = f"the column {wrong} is {'there twice' if wrong in found else 'missing'}"
            raise TraceError(str(path), rule, remedy, line=1)
        for cells in lines:
            if len(cells) != len(found):
                rule = f"{len(cells)} cells, where there are {len(found)} columns"
                raise TraceError(str(path), rule, "write a cell for each column", line=lines.line_num)
            yield lines.line_num, dict(zip(found, cells, strict=True))
    except csv.Error as error:
        raise TraceError(str(path), f"no line of cells: {error}", remedy, line=lines.line_num) from error


def number(path: Path, line: int, row: Row, column: str, least: float, most: float) -> float:
    """Return a number of a cell. Raises TraceError for text, and for a number out of its range."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        rule = f"{row[column].strip()[:40]!r} is no number from {least:g} to {most:g}"
        raise TraceError(str(path), rule, "write such a number", line=line, key=column)
    return value


def whole(path: Path, line: int, row: Row, column: str, most: int) -> int:
    """Return a whole number from 1 of a cell. Raises TraceError for anything else."""
    value = number(path, line, row, column, 1.0, math.inf)
    if value != int(min(value, 1e15)) or value > most:
        rule = f"{value:g} is no whole number from 1 to {most:,}"
        raise TraceError(str(path), rule, "write such a number", line=line, key=column)
    return int(value)
