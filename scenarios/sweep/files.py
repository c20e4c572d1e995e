"""The files of a sweep: sweep.json, sweep.csv, sweep.parquet and report.html, all of them or none."""

import csv
import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scenarios.results.files import all_or_none
from scenarios.results.folder import PAGE
from scenarios.summaries.as_json import as_json
from scenarios.summaries.sweep import SweepSummary
from scenarios.sweep.page import write_sweep_page
from scenarios.sweep.run import Sweep


def write_sweep(sweep: Sweep, out: Path) -> None:
    """Write the files into ``out``. Identical sweeps give identical bytes."""
    with all_or_none(out) as staging:
        text = json.dumps(sweep.as_json(), indent=2) + "\n"
        (staging / "sweep.json").write_text(text, encoding="utf-8", newline="\n")
        (staging / "sweep.csv").write_text(csv_text(sweep.summary), encoding="utf-8", newline="")
        pq.write_table(table_of(sweep.summary), staging / "sweep.parquet", compression="zstd")
        write_sweep_page(sweep.summary, sweep.pictures, staging / PAGE)


def csv_text(summary: SweepSummary[Any]) -> str:
    """Return a row per point, the best first, then the refused ones: keys set, result keys, ``refused``."""
    keys = [setting.key for setting in summary.settings]
    results = [as_json(point.results) for point in summary.points]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *results[0], "refused"])
    for point, found in zip(summary.points, results, strict=True):
        writer.writerow([*_values(point.set, keys), *(_cell(value) for value in found.values()), ""])
    for entry in summary.refused:
        writer.writerow([*_values(entry.set, keys), *("" for _ in results[0]), entry.reason])
    return text.getvalue()


def table_of(summary: SweepSummary[Any]) -> pa.Table:
    """Return the rows of ``csv_text`` as columns with types; what is missing is null.

    A column of numbers stays one; where a key has values of several types, all are text as in sweep.csv.
    """
    keys = [setting.key for setting in summary.settings]
    results = [as_json(point.results) for point in summary.points]
    rows = [point.set for point in summary.points] + [entry.set for entry in summary.refused]
    none = dict.fromkeys(results[0])
    columns = {key: _column([row[key] for row in rows]) for key in keys}
    columns |= {name: _column([found[name] for found in (*results, *[none] * len(summary.refused))]) for name in none}
    refused = [None] * len(results) + [entry.reason for entry in summary.refused]
    return pa.table(columns | {"refused": pa.array(refused, pa.string())})


def _column(values: list[Any]) -> pa.Array:
    """Return values as a column of one type."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _values(value_of: Mapping[str, Any], keys: list[str]) -> list[str]:
    """Return the values of a point: words as they were typed, lists and mappings as YAML has them."""
    return [_text(value_of[key]) for key in keys]


def _cell(value: Any) -> str:
    """Return a result: numbers to the last digit, words as they are, null empty."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
