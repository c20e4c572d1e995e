"""Recorded lookups of embedding tables: CSV, Parquet and Criteo files, and the errors of wrong ones."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traces.errors import TraceError
from traces.lookups import read_lookups

LOOKUPS = "users,clicked,items\n3,1,0\n8,0,4\n0,1,2\n"
CRITEO_LINES = "".join(
    "\t".join([label, *"1234567890123", first, *["68fd1e64"] * 24, last]) + "\n"
    for label, first, last in (("0", "05db9164", "1f"), ("1", "", "80000000"))
)


def write(folder: Path, name: str, text: str) -> Path:
    """Return a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_those_of_tables(tmp_path: Path) -> None:
    """Tables take the columns of their names, in the order of the tables; CSV and Parquet alike."""
    expected = [[0, 3], [4, 8], [2, 0]]
    assert read_lookups(write(tmp_path, "a.csv", LOOKUPS), {"items": 5, "users": 9}).tolist() == expected
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"users": pa.array([3, 8, 0], pa.int32()), "items": [0, 4, 2]}), path)
    assert read_lookups(path, {"items": 5, "users": 9}).tolist() == expected


def test_categories_of_criteo_are_rows_by_their_remainder(tmp_path: Path) -> None:
    """Hexadecimal digits, modulo the rows of the table; a missing category is row 0."""
    found = read_lookups(write(tmp_path, "day_0.tsv", CRITEO_LINES), {"C1": 1000, "C26": 7, "C2": 10})
    assert found.tolist() == [
        [0x05DB9164 % 1000, 0x1F % 7, 0x68FD1E64 % 10],
        [0, 0x80000000 % 7, 0x68FD1E64 % 10],
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", LOOKUPS.replace("8", "9"), "a.csv:3: users: '9' is no row of a table of 9"),
        ("a.csv", LOOKUPS.replace("8", "-1"), "a.csv:3: users: '-1' is no number of a row"),
        ("a.csv", LOOKUPS.replace("8", ""), "a.csv:3: users: '' is no number of a row"),
        ("a.csv", LOOKUPS.replace("users", "guests"), "there is no column users"),
        ("a.csv", "users,items\n1,2,3\n", "the file cannot be read"),
        ("a.csv", "users,items\n", "the file has no samples"),
        ("a.csv", "", "the file cannot be read"),
        ("a.parquet", "users", "the file cannot be read"),
        ("a.tsv", CRITEO_LINES, "users is no category of Criteo's files"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    """With file, line and column."""
    with pytest.raises(TraceError) as caught:
        read_lookups(write(tmp_path, name, text), {"users": 9, "items": 5})
    assert words in str(caught.value)


def test_wrong_categories_and_cells_are_refused(tmp_path: Path) -> None:
    """A category that is not hexadecimal, and Parquet columns with empty or fractional cells."""
    with pytest.raises(TraceError, match=r"a\.tsv:2: C1: 'x' is no category"):
        read_lookups(write(tmp_path, "a.tsv", CRITEO_LINES.replace("\t\t", "\tx\t")), {"C1": 9})
    for cells, words in (([1, None], "1 cells are empty"), ([0.5, 1.0], "cells of type double")):
        pq.write_table(pa.table({"users": cells}), tmp_path / "a.parquet")
        with pytest.raises(TraceError, match=words):
            read_lookups(tmp_path / "a.parquet", {"users": 9})
    pq.write_table(pa.table({"users": np.array([1, -1])}), tmp_path / "a.parquet")
    with pytest.raises(TraceError, match="sample 1: '-1' is no number of a row"):
        read_lookups(tmp_path / "a.parquet", {"users": 9})
