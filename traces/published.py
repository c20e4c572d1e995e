"""Published measurements: a CSV with the values, and a YAML sidecar with their meaning.

The sidecar's keys:

    citation, source, licence   text: the publication, the place of the numbers in it, their terms
    data        name of the CSV, beside the sidecar (default: the sidecar's name with .csv)
    row         column that names the rows, or a list of columns that do so together
    where       optional: the condition on rows. equal: {column: value or list of values}; holds: an expression
    group       optional: column whose values group the rows; the mean threshold then holds for every group
    base        a scenario, as a mapping; each row changes some of its keys. For collective_time_s: the keys of
                scenarios/validation/collective_row.py instead of a scenario
    columns     scenario key: expression over the CSV's columns (traces/cell_expression.py), for every row
    measured
      prediction  the compared result of the simulation: one of ``PREDICTIONS``
      unit        the unit of the measured columns: one of ``UNITS``
      columns     a list of measurements: column (its name), label (optional; part of the row's name) and
                  scenario (optional; further keys for this measurement: value)
      speedup_of  optional: {column: value} of one reference row. The compared value is the speed of the reference row
                  divided by the speed of each other row. So unpublished constants that all rows share cancel
    thresholds  mean and worst: the largest absolute relative errors that pass, as fractions; optional percentile_95:
                the largest error of 95 % of the rows (of every group, if there are groups)

A CSV may have unused columns. A measurement with an empty cell is left out.
"""

import ast
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from traces.cell_expression import Cell, ExpressionError, Value, columns_of, evaluate, parse_cell, parse_expression
from traces.errors import TraceError
from traces.sidecar import Section, read_section, read_text

FOLDER: Final = Path(__file__).parent / "published"

PREDICTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "iteration_time_s": "time",
        "collective_time_s": "time",
        "tokens_per_s": "token rate",
        "model_flop_per_s_per_device": "FLOP rate",
        "hardware_flop_per_s_per_device": "FLOP rate",
        "activation_bytes": "bytes",
        "peak_memory_bytes": "bytes",
        "busy_fraction": "fraction",
        "output_tokens_per_s": "token rate",
        "mean_ttft_s": "time",
        "mean_tpot_s": "time",
        "mean_jct_s": "time",
    }
)
"""The results of a simulation that can be compared, with their dimensions.

``activation_bytes``: of the first stage. ``peak_memory_bytes``: of the rank with the largest peak. ``busy_fraction``:
fraction of a step in which a rank computes, mean over ranks, 0..1. Of a service: ``output_tokens_per_s``,
``mean_ttft_s`` (time to the first token) and ``mean_tpot_s`` (time per output token after it). ``mean_jct_s``: mean
completion time of a mix of jobs.
"""

UNITS: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "s": ("time", 1.0),
        "ms": ("time", 1e-3),
        "us": ("time", 1e-6),
        "tokens/s": ("token rate", 1.0),
        "GFLOP/s": ("FLOP rate", 1e9),
        "TFLOP/s": ("FLOP rate", 1e12),
        "B": ("bytes", 1.0),
        "MiB": ("bytes", 2.0**20),
        "GB": ("bytes", 1e9),
        "GiB": ("bytes", 2.0**30),
        "1": ("fraction", 1.0),
    }
)
"""Units of measured columns: dimension, and factor to SI."""

_SPEEDS: Final = frozenset({"time", "token rate", "FLOP rate"})
_LEAST: Final = 1e-30
_MOST: Final = 1e30
"""Limit of measured numbers, in any unit, and of their reciprocals."""
_REMEDY: Final = "the docstring of traces/published.py shows what a table needs"
_TELLING: Final = frozenset({"base", "row", "thresholds"})
"""Keys of every table that scenarios and profiles lack."""
_DATA_SUFFIXES: Final = (".csv", ".parquet")
_KEYS: Final = (
    "citation", "source", "licence", "data", "row", "where", "group", "base", "columns", "measured", "thresholds",
)  # fmt: skip


class PublishedRow(Struct, frozen=True):
    """One measurement: its name, the base scenario's keys that it changes, and the value in SI units.

    ``group``: name of its group of rows, whose mean error is compared with the threshold; empty without groups.
    """

    name: str
    overrides: Mapping[str, Value]
    measured: float
    group: str = ""
    line: int = 0
    """Line of the measurement in the CSV, counted from 1."""


class PublishedTable(Struct, frozen=True):
    """Measurements of one publication, the scenario that they share, and the allowed errors of predictions.

    Thresholds are absolute relative errors, 0..1; None: any.
    """

    name: str
    path: Path
    data: Path
    citation: str
    source: str
    licence: str
    base: Mapping[str, Any]
    prediction: str
    unit: str
    mean_threshold: float
    worst_threshold: float
    percentile_95_threshold: float | None
    rows: tuple[PublishedRow, ...]
    reference: PublishedRow | None = None
    """The reference row of speedups (``speedup_of``); None: the rows' own values are compared."""

    def speedup(self, of_row: float, of_reference: float) -> float:
        """Return the speed of the reference divided by the speed of a row, given the values of both."""
        is_time = PREDICTIONS[self.prediction] == "time"
        return of_row / of_reference if is_time else of_reference / of_row


class _Measurement(Struct, frozen=True):
    """A measured column, its label and its scenario keys."""

    column: str
    label: str
    scenario: Mapping[str, Cell]


class _Mapping(Struct, frozen=True):
    """The mapping from a CSV's rows to measurements."""

    name_columns: tuple[str, ...]
    columns: Mapping[str, ast.expr]
    measurements: tuple[_Measurement, ...]
    factor: float
    group_column: str
    speedup_of: Mapping[str, str]
    equal: Mapping[str, tuple[str, ...]]
    holds: ast.expr | None

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the columns that a CSV must have."""
        named = [column for expression in self.columns.values() for column in columns_of(expression)]
        measured = [measurement.column for measurement in self.measurements]
        chosen = [*self.equal, *self.speedup_of, *(columns_of(self.holds) if self.holds else ())]
        group = [self.group_column] if self.group_column else []
        return tuple(dict.fromkeys([*self.name_columns, *group, *chosen, *named, *measured]))

    def takes(self, texts: Mapping[str, str], values: Mapping[str, Cell | None]) -> bool:
        """Return whether a row belongs to the table. Raises ExpressionError if ``holds`` has no value."""
        if any(texts[column].strip() not in wanted for column, wanted in self.equal.items()):
            return False
        return self.holds is None or bool(evaluate(self.holds, values))

    def is_reference(self, texts: Mapping[str, str]) -> bool:
        """Return whether a row is the reference row of speedups."""
        return bool(self.speedup_of) and all(texts[c].strip() == value for c, value in self.speedup_of.items())


def published_tables() -> tuple[Path, ...]:
    """Return the sidecars of the tables that come with meshtwin, by name."""
    return tuple(sorted(FOLDER.glob("*.yaml")))


def load_table(path: Path, data: Path | None = None) -> PublishedTable:
    """Return a sidecar's measurements, from its own CSV or from ``data``, which must have the same columns.

        table = load_table(published_tables()[0])

    Raises TraceError, with file, line, key, rule and remedy, for every error in either file.
    """
    if path.suffix in _DATA_SUFFIXES:
        rule, remedy = "this file has data without their meaning", "name the YAML file that goes with them"
        raise TraceError(str(path), rule, remedy)
    root = read_section(path, _REMEDY)
    if not _TELLING & root.values.keys():
        keys = ", ".join(sorted(_TELLING))
        raise TraceError(str(path), f"this is no table of measurements: it has none of the keys {keys}", _REMEDY)
    root.refuse_unknown(_KEYS)
    measured, thresholds = root.section("measured"), root.section("thresholds")
    measured.refuse_unknown(("prediction", "unit", "columns", "speedup_of"))
    thresholds.refuse_unknown(("mean", "worst", "percentile_95"))
    mapping = _mapping(root, measured)
    source = data or path.parent / (root.get("data", str) if "data" in root.values else f"{path.stem}.csv")
    rows, reference = _read_rows(source, mapping)
    return PublishedTable(
        name=path.stem,
        path=path,
        data=source,
        citation=root.get("citation", str),
        source=root.get("source", str),
        licence=root.get("licence", str),
        base=root.section("base").values,
        prediction=measured.get("prediction", str),
        unit=measured.get("unit", str),
        mean_threshold=_fraction(thresholds, "mean"),
        worst_threshold=_fraction(thresholds, "worst"),
        percentile_95_threshold=(
            _fraction(thresholds, "percentile_95") if "percentile_95" in thresholds.values else None
        ),
        rows=rows,
        reference=reference,
    )


def _mapping(root: Section, measured: Section) -> _Mapping:
    prediction, unit = measured.get("prediction", str), measured.get("unit", str)
    if prediction not in PREDICTIONS:
        raise measured.refusal(f"there is no result {prediction[:60]!r} to compare", _known(PREDICTIONS), "prediction")
    if unit not in UNITS:
        raise measured.refusal(f"there is no unit {unit[:60]!r}", _known(UNITS), "unit")
    dimension, factor = UNITS[unit]
    if dimension != PREDICTIONS[prediction]:
        rule = f"{unit} measures {dimension}, where {prediction} is {PREDICTIONS[prediction]}"
        fitting = [name for name, (kind, _) in UNITS.items() if kind == PREDICTIONS[prediction]]
        raise measured.refusal(rule, _known(fitting), "unit")
    measurements = tuple(_measurement(section) for section in measured.sections("columns"))
    if not measurements:
        raise measured.refusal("nothing is measured", "name at least one column", "columns")
    columns = root.section("columns")
    expressions = {key: _expression(columns, key) for key in columns.values}
    group = root.get("group", str) if "group" in root.values else ""
    speedup_of = _reference(measured)
    return _Mapping(_names(root), expressions, measurements, factor, group, speedup_of, *_choice(root))


def _names(root: Section) -> tuple[str, ...]:
    """Return the columns that name a row."""
    names = root.values.get("row")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    return (root.get("row", str),)


def _reference(measured: Section) -> Mapping[str, str]:
    """Return the cells that identify the reference row; empty if values are compared."""
    if "speedup_of" not in measured.values:
        return {}
    prediction = measured.get("prediction", str)
    if PREDICTIONS[prediction] not in _SPEEDS:
        fitting = [name for name, kind in PREDICTIONS.items() if kind in _SPEEDS]
        raise measured.refusal(f"{prediction} is no speed", f"compare {', '.join(fitting)}", "speedup_of")
    return {column: str(value) for column, value in measured.section("speedup_of").values.items()}


def _choice(root: Section) -> tuple[Mapping[str, tuple[str, ...]], ast.expr | None]:
    """Return the conditions on a row: the texts of columns, and the expression that must hold."""
    if "where" not in root.values:
        return {}, None
    where = root.section("where")
    where.refuse_unknown(("equal", "holds"))
    equal = where.section("equal").values if "equal" in where.values else {}
    wanted = {
        column: tuple(str(value) for value in (values if isinstance(values, list) else [values]))
        for column, values in equal.items()
    }
    return wanted, _expression(where, "holds") if "holds" in where.values else None


def _expression(columns: Section, key: str) -> ast.expr:
    """Return the parsed expression of one scenario key."""
    try:
        return parse_expression(columns.get(key, str))
    except ExpressionError as error:
        raise columns.refusal(str(error), "write a column's name, or for example: gpus / 8", key) from error


def _measurement(section: Section) -> _Measurement:
    section.refuse_unknown(("column", "label", "scenario"))
    label = section.get("label", str) if "label" in section.values else ""
    scenario = section.section("scenario").values if "scenario" in section.values else {}
    return _Measurement(section.get("column", str), label, scenario)


def _fraction(thresholds: Section, key: str) -> float:
    value = thresholds.values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 10:
        raise thresholds.refusal("a fraction more than 0 belongs here, as in 0.05 for 5 %", f"write {key}: 0.05", key)
    return float(value)


def _known(names: Sequence[str] | Mapping[str, object]) -> str:
    return f"known: {', '.join(names)}"


def _read_rows(path: Path, mapping: _Mapping) -> tuple[tuple[PublishedRow, ...], PublishedRow | None]:
    """Return the measurements of a CSV, and the reference measurement of speedups, if any."""
    text = read_text(path, "name a CSV with a line of column names and a line per row")
    reader = csv.reader(text.splitlines(), strict=True)
    rows: list[PublishedRow] = []
    references: list[PublishedRow] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, mapping)
        for cells in reader:
            if cells:
                is_reference = mapping.is_reference(dict(zip(header, cells, strict=False)))
                (references if is_reference else rows).extend(_row(path, reader.line_num, header, cells, mapping))
    except csv.Error as error:
        rule = f"this is not CSV: {error}"
        raise TraceError(str(path), rule, "write cells with commas between", line=reader.line_num) from error
    if not rows:
        raise TraceError(str(path), "no row has a measured value", "add a row with one")
    if mapping.speedup_of and len(references) != 1:
        named = ", ".join(f"{column} {value}" for column, value in mapping.speedup_of.items())
        rule = f"measured.speedup_of must select one measured value, and {len(references)} have {named}"
        raise TraceError(str(path), rule, "name columns whose values select one row")
    return tuple(rows), references[0] if references else None


def _check_header(path: Path, header: Sequence[str], mapping: _Mapping) -> None:
    for name in header:
        if header.count(name) > 1:
            raise TraceError(str(path), "two columns have this name", "rename one", line=1, key=name)
    missing = [name for name in mapping.needed if name not in header]
    if missing:
        what = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
        raise TraceError(
            str(path), f"the {what} missing", f"the table's mapping needs: {', '.join(mapping.needed)}", line=1
        )


def _row(path: Path, line: int, header: Sequence[str], cells: Sequence[str], mapping: _Mapping) -> list[PublishedRow]:
    """Return one line's measurements."""
    if len(cells) != len(header):
        rule = f"{len(cells)} cells, where the first line names {len(header)} columns"
        raise TraceError(str(path), rule, "write as many cells as columns", line=line)
    texts = dict(zip(header, cells, strict=True))
    values = {name: parse_cell(cell) for name, cell in texts.items()}
    try:
        if not mapping.takes(texts, values):
            return []
    except ExpressionError as error:
        raise TraceError(str(path), str(error), "mend the row, or where.holds", line=line, key="where") from error
    overrides: dict[str, Value] = {}
    for key, expression in mapping.columns.items():
        try:
            overrides[key] = evaluate(expression, values)
        except ExpressionError as error:
            columns = ", ".join(columns_of(expression))
            raise TraceError(str(path), str(error), f"mend the cell: {columns}", line=line, key=key) from error
    name = " ".join(texts[column].strip() for column in mapping.name_columns)
    group = texts[mapping.group_column].strip() if mapping.group_column else ""
    result = []
    for measurement in mapping.measurements:
        value = values[measurement.column]
        if value is None:
            continue
        if isinstance(value, bool | str) or not _LEAST <= value <= _MOST:
            rule = f"a measured value is a number more than 0, not {texts[measurement.column][:60]!r}"
            raise TraceError(str(path), rule, "mend the cell, or leave it empty", line=line, key=measurement.column)
        label = f"{name}, {measurement.label}" if measurement.label else name
        result.append(PublishedRow(label, {**overrides, **measurement.scenario}, value * mapping.factor, group, line))
    return result
