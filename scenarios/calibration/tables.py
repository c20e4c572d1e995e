"""Measured tables, and profiles fitted to them: kernels as Parquet, collectives as CSV."""

import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import pandas as pd
import pyarrow.parquet as pq
from msgspec import Struct

from costmodels.calibration.kernels import Fitted
from costmodels.calibration.network import MESSAGE
from costmodels.calibration.samples import CollectiveSample, KernelSample, Sample
from costmodels.collectives.traffic import TRAFFIC
from costmodels.hardware import NodeSpec
from costmodels.kernels.tensor import Family, GemmShape, Work
from costmodels.profile import load_profile
from costmodels.units import format_count
from scenarios.calibration.calibration import Calibration, calibrated
from scenarios.errors import Origin, ScenarioError, nearest
from scenarios.summaries.measured.calibration import TablesOrigin
from traces.bounded_parquet import TooLargeError, read_bounded

HELD_OUT_TABLES: Final = 2
"""Of the rows of tables, one in this many is held out of the fit."""
_GEMM: Final = ("m", "n", "k", "time_s")
_ATTENTION: Final = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "time_s")
_COLLECTIVES: Final = ("system", "collective", "n_gpus", "n_nodes", "bytes", "kind", "time_s")
_SPELLINGS: Final = {"alltoall": "all_to_all"}
_DTYPE, _ELEMENT_BYTES = "bfloat16", 2
_PAGE: Final = 64
"""Tokens of a page of the key-value cache."""
_MAX_ROWS: Final = 5_000_000
_MAX_BYTES: Final = 1 << 29
_WORDS: Final = frozenset({"system", "collective", "kind"})
_MOST: Final = 1 << 48
"""Upper limit of sizes and counts."""
_SHORTEST_S: Final = 1e-12
_LONGEST_S: Final = 1e9
"""Measured times are between a picosecond and 30 years, so that quotients of times are finite."""


class MeasuredTables(Struct, frozen=True, kw_only=True):
    """Tables for a fit. ``system``: the system whose rows of collectives count; ``source``: the tables' origin."""

    tables: tuple[Path, ...]
    system: str | None = None
    source: str = ""


def calibrate_tables(node: NodeSpec, measured: MeasuredTables, seed: int = 0) -> Calibration:
    """Return a profile of a node, fitted to one half of measured tables and checked on the other.

    Sections without measurements stay. Raises ScenarioError for unusable tables.
    """
    tables, system, source = measured.tables, measured.system, measured.source
    samples = read_tables(tables, system)
    start = Fitted(load_profile(node.device.profile), node)
    origin = TablesOrigin(tables=tuple(path.name for path in tables), system=system or None, source=source or None)
    return calibrated(samples, start, HELD_OUT_TABLES, seed, origin, fit_rates=False)


def read_tables(paths: Sequence[Path], system: str | None) -> list[Sample]:
    """Return the measurements of all tables.

    Raises ScenarioError for a table named twice, and for a system if no table has systems.
    """
    refuse_twice(paths)
    samples = list(chain.from_iterable(read_samples(path, system) for path in paths))
    if system is not None and not any(isinstance(sample, CollectiveSample) for sample in samples):
        rule = "no table of collectives is named, so there is no system to choose"
        raise ScenarioError(Origin(option=f"--system {system}"), "", rule, "leave it out")
    return samples


def refuse_twice(paths: Sequence[Path]) -> None:
    """Raise ScenarioError for a table that is named twice: its rows would count twice."""
    twice = [path for path, count in Counter(Path(os.path.realpath(path)) for path in paths).items() if count > 1]
    if twice:
        raise ScenarioError(Origin(str(twice[0])), "", "this table is named twice", "name it once")


def read_samples(path: Path, system: str | None) -> list[Sample]:
    """Return the measurements of one table.

    Parquet with columns m, n, k, time_s: matrix products [m, k] x [k, n] of bfloat16. Parquet with batch_size, isl,
    step, num_heads, num_key_value_heads, head_dim, time_s: causal attention of bfloat16 over isl new tokens after
    ``step`` old ones; one new token after old ones is decoding. CSV with system, collective, n_gpus, n_nodes, bytes,
    kind, time_s: collectives and messages (send_recv), of rows whose system is ``system`` and whose kind is
    ``measured``, without rows of one GPU, which move no data.

    Raises ScenarioError for a file of another format, an unknown system, and an impossible row.
    """
    table = _read(path)
    if table.columns.has_duplicates:
        name = str(table.columns[table.columns.duplicated()][0])
        raise ScenarioError(Origin(str(path)), name, "two columns have this name", "rename one")
    for columns, convert in _FORMATS.values():
        if set(columns) <= set(table.columns):
            samples = convert(path, _with_numbers(path, table, columns), system)
            if not samples:
                raise ScenarioError(Origin(str(path)), "", "no row of the table can be used", "name another table")
            return samples
    raise _unknown_columns(path, list(map(str, table.columns)))


def _unknown_columns(path: Path, found: Sequence[str]) -> ScenarioError:
    """Return the error of a table that lacks columns of the most similar format."""
    origin = Origin(str(path), 1 if path.suffix == ".csv" else 0)
    listed = ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")
    if len(found) == 1 and any(mark in found[0] for mark in ";\t"):
        return ScenarioError(origin, "", f"there is one column, {found[0]!r}", "write cells with commas between")
    missing = {what: [c for c in columns if c not in found] for what, (columns, _) in _FORMATS.items()}
    alike = min(missing, key=lambda what: len(missing[what]) / len(_FORMATS[what][0]))
    if len(missing[alike]) == len(_FORMATS[alike][0]):
        forms = "; or, of ".join(f"{what}: {', '.join(columns)}" for what, (columns, _) in _FORMATS.items())
        return ScenarioError(origin, "", f"the columns are {listed}", f"a table has, of {forms}")
    rule = f"a table of {alike} needs {format_count(len(missing[alike]), 'more column')}; the columns are {listed}"
    return ScenarioError(origin, ", ".join(missing[alike]), rule, "add what is missing, in SI units")


def _read(path: Path) -> pd.DataFrame:
    origin = Origin(str(path))
    readers: dict[str, Callable[[IO[bytes]], pd.DataFrame]] = {".parquet": _read_parquet, ".csv": _read_csv}
    try:
        _refuse_no_table(path, origin, readers)
    except OSError as error:  # for example, a name that is too long
        reason = (error.strerror or str(error)).lower()
        raise ScenarioError(origin, "", f"this cannot be read: {reason}", "check the path") from error
    try:
        with path.open("rb") as file:  # opened here, since pyarrow accepts only names in UTF-8
            table = readers[path.suffix](file)
    except TooLargeError as error:
        raise ScenarioError(origin, "", f"the table has {error}", "check that this is the file, or split it") from error
    except Exception as error:  # pandas and pyarrow raise many kinds of errors for files in another format
        reason = str(error).split("\n", 1)[0][:200]
        raise ScenarioError(origin, "", f"the table cannot be read: {reason}", "check that this is the file") from error
    if not 0 < len(table) <= _MAX_ROWS:
        rule = "the table has no rows" if table.empty else f"the table has more than {_MAX_ROWS:,} rows"
        raise ScenarioError(origin, "", rule, f"a table has 1 to {_MAX_ROWS:,} rows")
    return table


def _refuse_no_table(path: Path, origin: Origin, suffixes: Collection[str]) -> None:
    """Raise ScenarioError for a path that is no file of a known kind, or a file that is too large."""
    if path.is_dir():
        inside = next((entry for entry in sorted(path.iterdir()) if entry.suffix in suffixes), None)
        remedy = f"name a file in it, for example {inside}" if inside else "name a .parquet or .csv"
        raise ScenarioError(origin, "", "this is a directory, not a file", remedy)
    if path.suffix not in suffixes:
        raise ScenarioError(origin, "", f"{path.suffix or 'no ending'!r} is no known format", "name a .parquet or .csv")
    if not path.is_file():
        rule = "this is not a file" if path.exists() else "there is no such file"
        raise ScenarioError(origin, "", rule, "check the path")
    if not path.stat().st_size:
        raise ScenarioError(origin, "", "the file is empty", "name a .parquet or .csv of measurements")
    if path.stat().st_size > _MAX_BYTES:
        rule = f"the file is larger than {_MAX_BYTES >> 20} MiB, the most that is read"
        raise ScenarioError(origin, "", rule, "check that this is the file, or split it")


def _read_parquet(file: IO[bytes]) -> pd.DataFrame:
    with pq.ParquetFile(file) as opened:
        table: pd.DataFrame = read_bounded(opened, None, _MAX_ROWS, _MAX_BYTES).to_pandas()
    return table


def _read_csv(file: IO[bytes]) -> pd.DataFrame:
    """Return a table; of a table with too many rows, one row more than allowed."""
    return pd.read_csv(file, nrows=_MAX_ROWS + 1, low_memory=False)


def _with_numbers(path: Path, table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the table with times as floats, and with sizes and counts as whole numbers.

    Raises ScenarioError for the first invalid time, and the first size or count that is no whole number.
    """
    numbers: dict[str, pd.Series[float] | pd.Series[int]] = {}
    for column in columns:
        if column in _WORDS:
            continue
        values, least = _numbers(table[column]), 0 if column == "step" else 1
        if column == "time_s":
            good = values.between(_SHORTEST_S, _LONGEST_S)
            remedy = f"write seconds without their unit, from {_SHORTEST_S:g} to {_LONGEST_S:g}"
        else:
            good = values.between(least, _MOST) & (values % 1 == 0)
            remedy = f"write a whole number from {least} to {_MOST}"
        if not good.all():
            raise _bad_row(path, table, column, good, remedy)
        numbers[column] = values.astype(float if column == "time_s" else int)
    return table.assign(**numbers)


def _numbers(cells: "pd.Series[Any]") -> "pd.Series[float]":
    """Return cells as numbers, NaN where they are none."""
    try:
        return pd.to_numeric(cells, errors="coerce")
    except OverflowError:  # a whole number too large for a float
        return cells.map(_number)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (OverflowError, TypeError, ValueError):
        return math.nan


def _bad_row(path: Path, table: pd.DataFrame, column: str, good: "pd.Series[bool]", remedy: str) -> ScenarioError:
    """Return the error of the first bad row."""
    row = int((~good).to_numpy().argmax())
    return ScenarioError(Origin(str(path)), column, f"row {row + 1} has {str(table[column].iloc[row])!r}", remedy)


def _gemm_samples(_path: Path, table: pd.DataFrame, _system: str | None) -> list[Sample]:
    samples: list[Sample] = []
    for m, n, k, seconds in table[list(_GEMM)].itertuples(index=False, name=None):
        flop = 2.0 * m * n * k
        read, written = _ELEMENT_BYTES * (m * k + k * n), _ELEMENT_BYTES * m * n
        work = Work(flop, flop, int(read), int(written), GemmShape(int(m), int(n), int(k)))
        key, label = f"gemm {m} {n} {k}", _label("gemm", _GEMM, (m, n, k))
        samples.append(KernelSample(key=key, label=label, family="gemm", dtype=_DTYPE, work=work, seconds=seconds))
    return samples


def _attention_samples(path: Path, table: pd.DataFrame, _system: str | None) -> list[Sample]:
    """Return attention of whole sequences, and of single new tokens (decoding), each in its own family.

    The tables' op of whole sequences first writes queries, keys and values into the library's cache, in pages of _PAGE
    tokens.
    """
    samples: list[Sample] = []
    rows = table.loc[:, list(_ATTENTION)]
    shared = rows["num_heads"] % rows["num_key_value_heads"] == 0
    if not shared.all():
        raise _bad_row(path, table, "num_key_value_heads", shared, "write a number that divides num_heads")
    for batch, new, old, heads, kv_heads, size, seconds in rows.itertuples(index=False, name=None):
        key = f"attention {batch} {new} {old} {heads} {kv_heads} {size}"
        family: Family = "decode" if new == 1 and old > 0 else "attention"
        label = _label(family, _ATTENTION, (batch, new, old, heads, kv_heads, size))
        keys = new + old
        queries, kv = batch * new * heads * size, 2 * batch * keys * kv_heads * size
        if family == "decode":
            flop = 4.0 * queries * keys
            shape = GemmShape(heads // kv_heads, keys, size, batch * kv_heads)
            work = Work(flop, flop, _ELEMENT_BYTES * (queries + kv), _ELEMENT_BYTES * queries, shape)
            samples.append(KernelSample(key=key, label=label, family=family, dtype=_DTYPE, work=work, seconds=seconds))
            continue
        pages = _ELEMENT_BYTES * (kv + 2 * batch * (-keys % _PAGE) * kv_heads * size)
        flop = 4.0 * batch * heads * new * keys * size
        seen = old + new / 2  # keys that the causal mask leaves, on average
        written = _ELEMENT_BYTES * queries + 4 * batch * heads * new
        shape = GemmShape(new, keys, size, batch * heads)
        work = Work(flop, flop * seen / keys, _ELEMENT_BYTES * queries + pages, written, shape)
        staged = 2 * (_ELEMENT_BYTES * queries + pages)
        samples.append(
            KernelSample(
                key=key, label=label, family=family, dtype=_DTYPE, work=work, seconds=seconds, staged_bytes=staged
            )
        )  # fmt: skip
    return samples


def _collective_samples(path: Path, table: pd.DataFrame, system: str | None) -> list[Sample]:
    known = sorted(map(str, table.loc[table["kind"] == "measured", "system"].unique()))
    if len(known) != 1 if system is None else system not in known:
        raise _unknown_system(path, system, known)
    is_ours = (table["system"].astype(str) == (system or known[0])) & (table["kind"] == "measured")
    columns = ["collective", "n_gpus", "n_nodes", "bytes", "time_s"]
    is_known = table["collective"].isin([*TRAFFIC, MESSAGE, *_SPELLINGS])
    if not (is_known | ~is_ours).all():
        raise _bad_row(path, table, "collective", is_known | ~is_ours, f"known are {', '.join((*TRAFFIC, MESSAGE))}")
    is_even = table["n_gpus"] % table["n_nodes"] == 0
    if not (is_even | ~is_ours).all():
        raise _bad_row(path, table, "n_nodes", is_even | ~is_ours, "write a number that divides n_gpus")
    samples: list[Sample] = []
    for spelling, ranks, nodes, num_bytes, seconds in table.loc[is_ours, columns].itertuples(index=False, name=None):
        if ranks == 1:
            continue
        kind = _SPELLINGS.get(spelling, str(spelling))
        samples.append(
            CollectiveSample(
                key=f"{kind} {ranks} {nodes} {num_bytes}",
                label=_label(kind, columns[1:], (ranks, nodes, num_bytes)),
                kind=kind,
                num_bytes=num_bytes,
                ranks_per_node=(ranks // nodes,) * nodes,
                seconds=seconds,
            )
        )
    return samples


def _unknown_system(path: Path, system: str | None, known: Sequence[str]) -> ScenarioError:
    """Return the error of a table with several systems and none chosen that it has."""
    if not known:
        rule, remedy = "no row is of the kind 'measured'", "name another table"
        return ScenarioError(Origin(str(path)), "kind", rule, remedy)
    rule = "the table has several systems" if system is None else f"nothing was measured on a system {system!r}"
    close = next((name for name in known if system and system.lower() in name.lower()), nearest(system or "", known))
    meant = f"did you mean {shlex.quote(close)}? " if close else ""
    listed = ", ".join(map(shlex.quote, known))
    return ScenarioError(Origin(str(path)), "system", rule, f"name one with --system; {meant}known: {listed}")


def _label(what: str, columns: Sequence[str], values: Sequence[int]) -> str:
    """Return a description of a row for people: its subject, and its numbers under the names of their columns."""
    return " ".join([what, *(f"{column}={value}" for column, value in zip(columns, values, strict=False))])


_FORMATS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Path, pd.DataFrame, str | None], list[Sample]]]]] = {
    "matrix products": (_GEMM, _gemm_samples),
    "attention": (_ATTENTION, _attention_samples),
    "collectives": (_COLLECTIVES, _collective_samples),
}
"""Formats of tables: the required columns, and the reader of their rows."""
