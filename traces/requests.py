"""Recorded requests to services, read from files.

CSV: a row per request. Of the columns, in any order and spelling of upper and lower case, ``TIMESTAMP`` (or
``arrival_s``) is an instant, ``ContextTokens`` (or ``prompt_tokens``) and ``GeneratedTokens`` (or ``output_tokens``)
are whole numbers (Azure LLM inference traces 2023 and 2024, Patel et al. 2024, Splitwise).

JSON lines: an object per request with ``timestamp`` in milliseconds, ``input_length``, ``output_length`` and
``hash_ids``, the names of the prompt's blocks of 512 tokens (Qin et al. 2024, Mooncake).
"""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from msgspec import Struct

from traces.errors import TraceError

MOST_REQUESTS: Final = 5_000_000
MOST_TOKENS: Final = 10_000_000
MOONCAKE_BLOCK_TOKENS: Final = 512
_LONGEST_LINE: Final = 4_000_000
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": ("TIMESTAMP", "arrival_s"),
    "prompt": ("ContextTokens", "prompt_tokens", "num_prefill_tokens"),
    "output": ("GeneratedTokens", "output_tokens", "num_decode_tokens"),
}
"""Names of each column, the first of them Azure's."""


class RecordedRequests(Struct, frozen=True):
    """Requests in order of arrival; instants in seconds from the first. ``prefixes``: empty if none are recorded."""

    arrival_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    prefixes: tuple[tuple[int, ...], ...]


_Row = tuple[float, int, int, tuple[int, ...]]


def read_requests(path: Path) -> RecordedRequests:
    """Return the requests of a CSV or JSON lines file. Raises TraceError, with the line, for one that breaks a rule."""
    reader = _from_json if path.suffix in {".jsonl", ".json"} else _from_csv
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _bounded(path, reader(path, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(str(path), f"the file cannot be read: {error}", _remedy(path)) from error
    if not rows:
        raise TraceError(str(path), "the file has no requests", _remedy(path))
    rows.sort(key=lambda row: row[0])
    arrival, prompt, output, prefixes = zip(*rows, strict=True)
    return RecordedRequests(
        tuple(instant - arrival[0] for instant in arrival), prompt, output, prefixes if any(prefixes) else ()
    )


def _remedy(path: Path) -> str:
    if path.suffix in {".jsonl", ".json"}:
        return "write an object per line with timestamp, input_length, output_length and hash_ids"
    return "name a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens"


def _bounded(path: Path, rows: Iterator[_Row]) -> list[_Row]:
    found = list[_Row]()
    for row in rows:
        if len(found) == MOST_REQUESTS:
            raise TraceError(str(path), f"there are more than {MOST_REQUESTS:,} requests", "name a shorter trace")
        found.append(row)
    return found


def _from_csv(path: Path, file: TextIO) -> Iterator[_Row]:
    reader = csv.reader(file)
    heads = [head.strip() for head in next(reader, [])]
    lowered = [head.lower() for head in heads]
    places = {}
    for what, names in _NAMES.items():
        place = next((lowered.index(name.lower()) for name in names if name.lower() in lowered), None)
        if place is None:
            raise TraceError(str(path), f"there is no column {' or '.join(names)}", _remedy(path), line=1)
        places[what] = place
    for row in reader:
        if not row:
            continue
        if len(row) <= max(places.values()):
            rule = f"the row has {len(row)} cells, and the head {len(heads)}"
            raise TraceError(str(path), rule, "write a cell per column", line=reader.line_num)
        arrival_s = _instant(path, row[places["arrival"]], reader.line_num, heads[places["arrival"]])
        prompt, output = (
            _count(path, row[places[what]], reader.line_num, heads[places[what]]) for what in ("prompt", "output")
        )
        yield arrival_s, prompt, output, ()


def _instant(path: Path, text: str, line: int, key: str) -> float:
    """Return an instant in seconds: a number, or a date with a time of day."""
    try:
        found = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(_shortened(text.strip())).timestamp()
        except ValueError:
            rule = f"{text[:40]!r} is neither a number of seconds nor a date and time"
            raise TraceError(str(path), rule, "write 12.5, or 2023-11-16 18:15:46.68", line=line, key=key) from None
    if not 0.0 <= found < 1e13:
        raise TraceError(str(path), f"{text[:40]!r} is no instant from 0", "write seconds", line=line, key=key)
    return found


def _shortened(text: str) -> str:
    """Return a date and time with microseconds: Azure writes one digit more."""
    whole, dot, fraction = text.partition(".")
    digits = "".join(character for character in fraction if character.isdigit())
    zone = fraction[len(digits) :]
    return f"{whole}{dot}{digits[:6].ljust(6, '0')}{zone}" if dot else text


def _count(path: Path, value: object, line: int, key: str) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= MOST_TOKENS:
        rule = f"{text[:40]!r} is not a number of tokens from 1 to {MOST_TOKENS:,}"
        raise TraceError(
            str(path), rule, "write a whole number of tokens, or leave the request out", line=line, key=key
        )
    return int(text)


def _from_json(path: Path, file: TextIO) -> Iterator[_Row]:
    line = 0
    while text := file.readline(_LONGEST_LINE):
        line += 1
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(str(path), f"this is not JSON: {error}", _remedy(path), line=line) from None
        yield _of_entry(path, entry, line)


def _of_entry(path: Path, entry: Any, line: int) -> _Row:
    keys = ("timestamp", "input_length", "output_length")
    if not isinstance(entry, dict) or any(key not in entry for key in keys):
        raise TraceError(str(path), f"a request needs the keys {', '.join(keys)}", _remedy(path), line=line)
    key, names = "hash_ids", entry.get("hash_ids", [])
    if not isinstance(names, list) or not all(type(name) is int for name in names):
        raise TraceError(
            str(path), "this is no list of whole numbers", "write [0, 1, 2], or leave it out", line=line, key=key
        )
    arrival_s = _milliseconds(path, entry["timestamp"], line) / 1e3
    prompt, output = (_count(path, entry[key], line, key) for key in keys[1:])
    return arrival_s, prompt, output, tuple(names)


def _milliseconds(path: Path, value: object, line: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e16:
        rule = f"{str(value)[:40]!r} is no number of milliseconds from 0"
        raise TraceError(str(path), rule, "write 27482", line=line, key="timestamp")
    return float(value)
