"""Reading of a small YAML file as plain values with their lines.

The format is restricted: no tags, no anchors, no repeated keys, at most 1 MiB, 20,000 values and 20 levels.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from traces.errors import TraceError

MAX_FILE_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 20
MAX_VALUES: Final = 20_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser where PyYAML was built with it
KeyPath = tuple[str | int, ...]


def read_text(path: Path, remedy: str) -> str:
    """Return a UTF-8 text of at most 1 MiB. Raises TraceError for any other file."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise TraceError(str(path), "there is no such file", _nearest(path)) from error
    except IsADirectoryError as error:
        raise TraceError(str(path), "this is a directory, not a file", "name a file in it") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(str(path), f"the file cannot be read: {reason.lower()}", remedy) from error
    if len(raw) > MAX_FILE_BYTES:
        raise TraceError(str(path), "the file is larger than 1 MiB, the most that is read", remedy)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TraceError(str(path), "the file is not UTF-8 text", "save it as UTF-8 text", line=line) from error
    if not text.strip():
        raise TraceError(str(path), "the file is empty", remedy)
    return text


def _nearest(path: Path) -> str:
    """Return the remedy for a path that does not exist."""
    with suppress(OSError):
        close = get_close_matches(path.name, sorted({entry.name for entry in path.parent.iterdir()} - {path.name}), n=1)
        if close:
            return f"did you mean {path.parent / close[0]}?"
    return "check the path"


def _open_at_once(name: str, flags: int) -> int:
    """Open a file; a pipe without a writer opens without waiting, and is empty."""
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


class Section(Struct, frozen=True):
    """A mapping of a sidecar, with the file and its place in the file."""

    file: str
    path: KeyPath
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    def get(self, key: str, kind: type[Any]) -> Any:
        """Return a required value of one type. Raises TraceError if it is missing or of another type."""
        if key not in self.values:
            raise self.refusal(f"the key {key} is required and missing", f"add {key}:")
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            shown = _NAMES.get(type(value), type(value).__name__)
            raise self.refusal(
                f"{_NAMES[kind]} belongs here, not {shown}", "see the docstring of traces/published.py", key
            )
        return value

    def section(self, key: str) -> "Section":
        """Return the mapping at ``key``."""
        return Section(self.file, (*self.path, key), self.get(key, dict), self.lines)

    def sections(self, key: str) -> "list[Section]":
        """Return the mappings in the list at ``key``."""
        result = []
        for index, item in enumerate(self.get(key, list)):
            where = (*self.path, key, index)
            if not isinstance(item, dict):
                raise self.refusal("the items of this list must be mappings", "write - key: value", key)
            result.append(Section(self.file, where, item, self.lines))
        return result

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise TraceError for the first unknown key, with the nearest known one."""
        names = sorted(known)
        for key in self.values:
            if key not in names:
                close = get_close_matches(key, names, n=1)
                remedy = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
                raise self.refusal("unknown key", remedy, key)

    def refusal(self, rule: str, remedy: str, key: str = "") -> TraceError:
        """Return an error at ``key`` of this mapping, or at the mapping."""
        path = (*self.path, key) if key else self.path
        known = path
        while known not in self.lines and known:
            known = known[:-1]
        return TraceError(self.file, rule, remedy, line=self.lines.get(known, 0), key=_dotted(path))


_NAMES: Final[Mapping[type[Any], str]] = {
    str: "text", int: "a whole number", float: "a number", dict: "a mapping", list: "a list", bool: "a truth value",
    type(None): "nothing",
}  # fmt: skip


def read_section(path: Path, remedy: str) -> Section:
    """Return the one mapping that a YAML file holds. Raises TraceError for any other content."""
    text = read_text(path, remedy)
    try:
        _refuse_hostile(path, text)
        loader = _LOADER(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise TraceError(str(path), "the file must hold key: value lines", remedy)
        lines: dict[KeyPath, int] = {}
        return Section(str(path), (), _plain(path, loader, root, (), lines), lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).replace("\n", " ")[:200]
        rule, line = f"this is not YAML: {problem}", mark.line + 1 if mark else 0
        raise TraceError(str(path), rule, "write key: value lines, indented with spaces", line=line) from error


def _refuse_hostile(path: Path, text: str) -> None:
    """Raise TraceError for anchors and tags, for deep nesting and for too many values, before any value is built."""
    depth = num_values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        num_values += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        rule = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            rule = "anchors and aliases are not read"
        elif getattr(event, "tag", None) is not None:
            rule = "tags are not read"
        elif depth > MAX_DEPTH:
            rule = f"values are nested more than {MAX_DEPTH} deep"
        elif num_values > MAX_VALUES:
            rule = f"there are more than {MAX_VALUES:,} values, the most that is read"
        if rule:
            raise TraceError(str(path), rule, "write the values out, and no more than a table needs", line=_line(event))


def _line(marked: yaml.Event | yaml.Node) -> int:
    return marked.start_mark.line + 1 if marked.start_mark else 0


def _plain(path: Path, loader: Any, node: yaml.Node, where: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """Return a node's value, noting the line of every key and item below it."""
    lines.setdefault(where, _line(node))
    if isinstance(node, yaml.ScalarNode):
        try:
            return loader.construct_object(node)
        except ValueError as error:  # for example, an impossible date or a number too long
            rule = f"{node.value[:40]!r} is neither text nor a number"
            raise TraceError(str(path), rule, "put it in quotes", line=_line(node), key=_dotted(where)) from error
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, loader, child, (*where, index), lines) for index, child in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, child in node.value:
        key, line = key_node.value, _line(key_node)
        if not isinstance(key, str) or key in result:
            raise TraceError(str(path), "keys are names, and each is written once", "mend this key", line=line)
        lines[*where, key] = line
        result[key] = _plain(path, loader, child, (*where, key), lines)
    return result


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text
