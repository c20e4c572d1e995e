"""Change good files into hostile ones: by structure (values, keys, rows), by line, and by byte."""

import base64
import csv
import io
import json
import random
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

METADATA_KEY: Final = b"meshtwin"
Case = dict[str, bytes]
"""The files of one input, by name."""

_MOST_CHANGED: Final = 1e18
LONG: Final = "x" * 5_000
STRANGE_TEXT: Final = (
    "", " ", "a", "\x1b[31mred\x1b[0m", "\u202eabc\u2066", "\x9b2J", "é", "名前", "\ud800", "\0", "\n", "a\r\nb",
    "\ufeff", "</script><!--<script>", "[/b]", "[bold]", "$\\frac$", "%{y}", "{0}", "%s", "../..", "/dev/null", "a/b",
    "~", "null", "yes", "0x10", "1_000", "1:30", "2001-99-99", "2020-01-01", "1e400", "nan", "inf", "-", "auto", "1 s",
    "-1 s", "1e300 GiB", "1e-300 s", "0 B", "1e18 B/s", "1 GB", "nan s", "1e308 d", "1e5 s", "=1+1", "'", '"', "#", ",",
    "a,b", "gpt", "llama", "[0, 1]", "0-7", LONG,
)  # fmt: skip
STRANGE_NUMBERS: Final = (
    0, 1, -1, 2, 3, 7, 1.5, 0.1, -0.0, 255, 1 << 20, 2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64,
    10**30, -(10**30), 1e-320, 1e15, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 10**299,
)  # fmt: skip
Tree = Any


def mutated(rng: random.Random, case: Case, others: Iterable[Case]) -> Case:
    """Return the case with one file, seldom several, changed; ``others``: cases to splice from."""
    found = dict(case)
    for _ in range(1 if rng.random() < 0.9 else 2):
        name = rng.choice(sorted(found))
        suffix = name[name.index(".") :] if "." in name else ""
        by_structure = STRUCTURES.get(suffix)
        if by_structure is not None and rng.random() < 0.75:
            try:
                found[name] = by_structure(rng, found[name])
                continue
            except Exception:
                pass
        pool = [other[name] for other in others if name in other]
        found[name] = _bytes(rng, found[name], pool)
    return found


# --- trees -------------------------------------------------------------------------------------------------


def tree(rng: random.Random, data: Tree) -> Tree:
    """Return plain values with one to four changes."""
    data = deepcopy(data)
    for _ in range(min(4, 1 + int(rng.expovariate(1.2)))):
        data = _changed(rng, data)
    return data


def _changed(rng: random.Random, data: Tree) -> Tree:
    """Return plain values with one change, most often in place."""
    places = list(_places(data))
    if not places:
        return _strange(rng)
    holder, key = rng.choice(places)
    value = holder[key]
    match rng.randrange(12):
        case 0 | 1 | 2:
            holder[key] = _strange(rng)
        case 3 | 4:
            holder[key] = _near(rng, value)
        case 5 | 6:
            del holder[key]
        case 7:
            _rename(rng, holder, key)
        case 8:
            other, place = rng.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                holder[key] = deepcopy(other[place])
        case 9:
            holder[key] = rng.choice(
                ([value], {"a": value}, {str(key): value}, [value, value], [[value]], [value] * 50)
            )
        case 10:
            _put(rng, holder, deepcopy(value))
        case _:
            holder[key] = _kin(rng, value)
    return data


def _places(data: Tree) -> list[tuple[Any, Any]]:
    """Return every mapping or list below a value, with each of its keys or places."""
    found: list[tuple[Any, Any]] = []
    left = [data]
    while left:
        node = left.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
        for key in keys:
            found.append((node, key))
            left.append(node[key])
    return found


def _strange(rng: random.Random) -> Tree:
    match rng.randrange(6):
        case 0:
            return rng.choice(
                (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "a"], list(range(300)))
            )
        case 1:
            deep: Tree = []
            for _ in range(rng.choice((3, 30, 120))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            return deep
        case 2 | 3:
            return rng.choice(STRANGE_NUMBERS)
        case _:
            return rng.choice(STRANGE_TEXT)


def _near(rng: random.Random, value: Tree) -> Tree:
    """Return a value like another: a number a little or much larger, a text a letter apart, a list a part shorter."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        change = rng.choice((lambda v: v + 1, lambda v: v - 1, lambda v: -v, lambda v: v * 10, lambda v: v * 1000,
                             lambda v: v / 3, lambda v: v // 2, lambda v: 0, float, str))  # fmt: skip
        return change(value) if abs(value) < _MOST_CHANGED else 1
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        letter = rng.choice(("", "0", "9", "-", ".", "e", " ", "k", "G", "\x1b", "é"))
        return value[:at] + letter + value[at + rng.randrange(2) :]
    if isinstance(value, list):
        chosen = list(value)
        rng.shuffle(chosen)
        return chosen[: rng.randrange(len(chosen) + 1)] + chosen[: rng.randrange(3)]
    return value


def _kin(rng: random.Random, value: Tree) -> Tree:
    """Return a value of another type that reads alike."""
    if isinstance(value, str):
        return rng.choice(
            ([value], {value: 1}, value.encode("utf-8", "replace").decode("latin-1"), value * 3, value.upper())
        )
    if isinstance(value, dict):
        return rng.choice((list(value.items()), [*value], str(value)[:200], [value]))
    if isinstance(value, list):
        return rng.choice(
            (dict(enumerate(map(str, value))), {str(i): item for i, item in enumerate(value)}, str(value)[:200])
        )
    return str(value)


def _rename(rng: random.Random, holder: Tree, key: Any) -> None:
    if isinstance(holder, dict):
        holder[
            rng.choice(
                (f"{key}x", str(key)[:-1], str(key).upper(), "", LONG, "\x1b[1m", "é", "<<", "a.b", f"{key}\u202e")
            )
        ] = holder.pop(key)
    elif holder:
        holder.insert(rng.randrange(len(holder) + 1), holder[key])


def _put(rng: random.Random, holder: Tree, value: Tree) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("a", "value", "source", "name", "type", "base", "count"))] = value
    else:
        holder.append(value)


# --- files with a structure --------------------------------------------------------------------------------


def _yaml(rng: random.Random, raw: bytes) -> bytes:
    text = raw.decode()
    if rng.random() < 0.2:
        return _lines(rng, text).encode("utf-8", "surrogatepass")
    data = tree(rng, yaml.load(text, Loader=yaml.CSafeLoader))
    return yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False, width=10_000).encode(
        "utf-8", "surrogatepass"
    )


def _json(rng: random.Random, raw: bytes) -> bytes:
    return json.dumps(tree(rng, json.loads(raw))).encode()


def _csv(rng: random.Random, raw: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(raw.decode())))
    if rng.random() < 0.2:
        return _lines(rng, raw.decode()).encode("utf-8", "surrogatepass")
    for _ in range(rng.randrange(1, 4)):
        row = rng.randrange(len(rows))
        column = rng.randrange(len(rows[row]))
        match rng.randrange(7):
            case 0 | 1 | 2:
                rows[row][column] = str(rng.choice((*STRANGE_TEXT, *STRANGE_NUMBERS)))
            case 3:
                rows[row][column] = str(_near(rng, rows[row][column]))
            case 4:
                del rows[row][column]
            case 5:
                rows.insert(row, list(rng.choice(rows)))
            case _:
                for each in rows:
                    each.insert(column, str(rng.choice(STRANGE_NUMBERS)))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _lines(rng: random.Random, text: str) -> str:
    """Return a text with lines repeated, left out, moved or indented otherwise."""
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(6):
            case 0:
                lines.insert(at, line)
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at] = " " * rng.randrange(6) + line
            case 3:
                lines.insert(rng.randrange(len(lines)), line)
            case 4:
                lines[at] = line.replace(
                    ": ", rng.choice((":", ": !!int ", ": &a ", ": *a ", ": |\n  ", ": '", ":\t")), 1
                )
            case _:
                lines.insert(at, rng.choice(STRANGE_TEXT))
    return "\n".join(lines)


def _parquet(rng: random.Random, raw: bytes) -> bytes:
    """Return a Parquet file with a column, its type, its values, or its metadata changed."""
    data = pq.read_table(io.BytesIO(raw))
    match rng.randrange(5):
        case 0:
            metadata = dict(data.schema.metadata or {})
            if METADATA_KEY in metadata:
                metadata[METADATA_KEY] = json.dumps(tree(rng, json.loads(metadata[METADATA_KEY]))).encode()
                data = data.replace_schema_metadata(metadata)
        case 1:
            at = rng.randrange(data.num_columns)
            data = (
                data.remove_column(at)
                if rng.random() < 0.5
                else data.append_column(data.schema.field(at), data.column(at))
            )
        case _:
            data = _column_changed(rng, data)
    sink = io.BytesIO()
    pq.write_table(data, sink)
    return sink.getvalue()


def _column_changed(rng: random.Random, data: pa.Table) -> pa.Table:
    at = rng.randrange(data.num_columns)
    field = data.schema.field(at)
    values = data.column(at).to_pylist()
    if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
        pool: tuple[Any, ...] = ("", "all_reduce", "send", "recv", "compute", "barrier", *STRANGE_TEXT[:24])
        pool = tuple(text for text in pool if "\ud800" not in text)
    elif pa.types.is_integer(field.type):
        top = 2 ** (field.type.bit_width - 1)
        pool = (0, -1, 1, top - 1, -top, 7)
    else:
        pool = (0.0, -1.0, 1e300, -1e300, 1e-300, float("nan"), float("inf"), float("-inf"), 1.0)
    if rng.random() < 0.15:
        pool = (None,)
    for _ in range(rng.randrange(1, 4)):
        values[rng.randrange(len(values))] = rng.choice(pool)
    if rng.random() < 0.15:
        values = [rng.choice(pool)] * len(values)
    kind = (
        field.type if rng.random() < 0.9 else rng.choice((pa.string(), pa.float32(), pa.int64(), pa.list_(pa.int64())))
    )
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError):
        column = pa.array([None] * len(values), kind)
    return data.set_column(at, pa.field(field.name, kind), column)


# --- bytes -------------------------------------------------------------------------------------------------


def _bytes(rng: random.Random, raw: bytes, pool: list[bytes]) -> bytes:
    """Return bytes with one to four of them flipped, a part cut, repeated, or taken from another file."""
    found = bytearray(raw)
    match rng.randrange(8):
        case 0 | 1 | 2:
            for _ in range(rng.randrange(1, 5)):
                if found:
                    found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
        case 3:
            del found[rng.randrange(len(found) + 1) :]
        case 4:
            at = rng.randrange(len(found) + 1)
            found[at:at] = rng.choice(
                (b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"[" * 200, b"{" * 200, b"9" * 400, b"\n", b"- ")
            )
        case 5:
            begin, end = sorted(rng.randrange(len(found) + 1) for _ in range(2))
            del found[begin:end]
        case 6:
            begin, end = sorted(rng.randrange(len(found) + 1) for _ in range(2))
            found[end:end] = found[begin:end] * rng.choice((1, 2, 20))
        case _:
            other = rng.choice(pool) if pool else raw
            found[rng.randrange(len(found) + 1) :] = other[rng.randrange(len(other) + 1) :]
    return bytes(found)


STRUCTURES: Final[Mapping[str, Callable[[random.Random, bytes], bytes]]] = {
    ".yaml": _yaml, ".json": _json, ".csv": _csv, ".parquet": _parquet,
}  # fmt: skip


# --- cases as files ----------------------------------------------------------------------------------------


def to_text(case: Case) -> str:
    """Return a case as JSON: texts as they are, other bytes in base 64."""
    return json.dumps({name: _shown(raw) for name, raw in sorted(case.items())}, indent=1, ensure_ascii=True) + "\n"


def _shown(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def from_text(text: str) -> Case:
    """Return the case that ``to_text`` wrote."""
    return {
        name: shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"])
        for name, shown in json.loads(text).items()
    }
