"""Reading of a YAML file into plain values, each with its place in the file.

Reads the parser's events, so nothing is built before it is known to be small: a nest of aliases costs what
it expands to, and is refused before it is expanded. Plain scalars follow YAML 1.2's core schema (``no`` and
``1:30`` are text, ``1e-3`` is a number), not PyYAML's 1.1.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from yaml.error import YAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from costmodels.yaml_loader import SafeLoader
from scenarios.errors import Origin, ScenarioError
from scenarios.library.shipped import near_scenario
from scenarios.reading.documents.text_file import read_text

MAX_DEPTH = 50
MAX_NODES = 20_000
MAX_DIGITS = 300

KeyPath = tuple[str | int, ...]
Scalar = str | int | float | bool | None

START_HINT = "write a starter file with: simulate new my.yaml"

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Document(Struct, frozen=True):
    """A file's plain values (``data``) and the origin of every key path in it."""

    source: Path
    data: dict[str, Any]
    origins: dict[KeyPath, Origin]

    def origin(self, path: Sequence[str | int]) -> Origin:
        """Return where ``path`` was written, or its nearest ancestor that was."""
        parts = tuple(path)
        while parts and parts not in self.origins:
            parts = parts[:-1]
        return self.origins[parts]


def read_document(path: Path, start_hint: str = "") -> Document:
    """Return the one mapping that a YAML file holds. ``start_hint``: how to come by such a file, default a scenario.

    Raises ScenarioError for files that cannot be read, are not YAML or not one mapping, repeat a key, carry tags,
    nest deeper than 50 or hold more than 20,000 nodes with aliases expanded.
    """
    return document_of(read_text(path, start_hint or _scenario_hint(path)), path, start_hint or START_HINT)


def _scenario_hint(path: Path) -> str:
    """Return how to come by a scenario: one that ships, where nothing lies at a path that is much like its name."""
    try:
        near = "" if path.exists() else near_scenario(path)
    except (OSError, ValueError):  # too long for a file name, or with a NUL character
        near = ""
    return f"name the scenario {near} (all: simulate list scenarios)" if near else START_HINT


def document_of(text: str, path: Path, start_hint: str = START_HINT) -> Document:
    """Return the one mapping that the text of a file holds. Raises ScenarioError as ``read_document``."""
    root = _TreeReader(lambda line: Origin(str(path), line)).read(text)
    if root is None or (root.value is None and not root.quoted):
        raise ScenarioError(Origin(str(path)), "", "the file is empty", start_hint)
    if not isinstance(root.value, dict):
        rule = f"the file holds {describe(_plain(root))}, where key: value lines belong"
        raise ScenarioError(Origin(str(path), root.line), "", rule, start_hint)
    origins: dict[KeyPath, Origin] = {(): Origin(str(path))}
    origins.update((where, Origin(str(path), line)) for where, line in _lines(root, ()))
    return Document(source=path, data=_plain(root), origins=origins)


def read_value(text: str, option: str) -> Any:
    """Return the value that a command line ``option`` gives as YAML text. ``null`` gives None."""
    origin = Origin(option=option)
    root = _TreeReader(lambda _line: origin).read(text)
    if root is None or (root.value is None and not root.quoted and text.strip() not in _WORDS):
        raise ScenarioError(origin, "", "there is no value after =", "write --set key=value")
    return _plain(root)


def parse_scalar(text: str) -> Scalar:
    """Return what an unquoted scalar means in YAML 1.2's core schema.

    Raises ValueError for a number of more than 300 digits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1))
    if _FLOAT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            message = f"a number of {len(text)} characters"
            raise ValueError(message)
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    return text


def describe(value: object) -> str:
    """Return a value for an error message: short, and with its YAML type where that helps."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (a truth value)"
        case str():
            return f"{value[:60]!r}{'...' if len(value) > 60 else ''} (text)"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return str(value)[:60]


class _Node(Struct, frozen=True):
    """One value with its line; ``num_nodes`` and ``height`` count with aliases expanded."""

    value: "Scalar | dict[str, tuple[int, _Node]] | list[_Node]"
    line: int
    quoted: bool = False
    num_nodes: int = 1
    height: int = 0


class _TreeReader(Struct):
    """One pass over the events of one text."""

    origin_at: Callable[[int], Origin]
    anchors: dict[str, _Node] = field(default_factory=dict)
    num_nodes: int = 0

    def read(self, text: str) -> _Node | None:
        """Return the root node, or None if the text holds no document."""
        try:
            return self._document(_events(text))
        except YAMLError as error:
            raise self._not_yaml(text, error) from error
        except UnicodeEncodeError as error:
            raise ScenarioError(self.origin_at(0), "", "this is not UTF-8 text", "write plain text") from error

    def _document(self, events: Iterator[Any]) -> _Node | None:
        root: _Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise self._refuse(event, "a second document starts here", "keep one document per file")
                root = self._node(next(events), events, depth=1)
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> _Node:
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        self._count(event, 1, depth)
        if event.tag is not None:
            remedy = "write the value without it: scenarios hold text, numbers, lists and mappings only"
            raise self._refuse(event, f"the tag {event.tag[:60]} is not allowed", remedy)
        if isinstance(event, ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(event, events, depth)
        else:
            node = self._mapping(event, events, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> _Node:
        node = self.anchors.get(event.anchor)
        if node is None:
            rule = f"the alias *{event.anchor[:60]} names no anchor before it"
            raise self._refuse(event, rule, "write the value out")
        self._count(event, node.num_nodes, depth + node.height)
        return node

    def _count(self, event: Any, num_nodes: int, depth: int) -> None:
        self.num_nodes += num_nodes
        if self.num_nodes > MAX_NODES:
            rule = f"the file holds more than {MAX_NODES:,} values (aliases expanded), the most that is read"
            raise self._refuse(event, rule, "a scenario needs some dozens; check that this is the right file")
        if depth > MAX_DEPTH:
            rule = f"values are nested more than {MAX_DEPTH} deep, the most that is read"
            raise self._refuse(event, rule, "a scenario nests 3 deep; check that this is the right file")

    def _scalar(self, event: Any) -> _Node:
        line = event.start_mark.line + 1
        quoted = event.style not in {None, ""}
        if quoted:
            return _Node(event.value, line, quoted=True)
        try:
            return _Node(parse_scalar(event.value), line)
        except ValueError as error:
            rule = f"{error} is too long, the limit is {MAX_DIGITS}"
            raise self._refuse(event, rule, "write a smaller number") from error

    def _sequence(self, start: Any, events: Iterator[Any], depth: int) -> _Node:
        items: list[_Node] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(self._node(event, events, depth + 1))
        return _Node(items, start.start_mark.line + 1, False, *_extent(items))

    def _mapping(self, start: Any, events: Iterator[Any], depth: int) -> _Node:
        entries: dict[str, tuple[int, _Node]] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            key = self._node(event, events, depth + 1)
            line = event.start_mark.line + 1
            if not isinstance(key.value, str):
                rule = f"the key {describe(_plain(key))} is not text"
                remedy = "keys are names, as in `seed: 0`; a number is written without commas, as in 12288"
                raise self._refuse(event, rule, remedy)
            if key.value in entries:
                rule = f"the key is written twice, first in line {entries[key.value][0]}"
                raise self._refuse(event, rule, "keep one of the two", key=key.value)
            entries[key.value] = (line, self._node(next(events), events, depth + 1))
        extent = _extent([node for _, node in entries.values()], num_keys=len(entries))
        return _Node(entries, start.start_mark.line + 1, False, *extent)

    def _refuse(self, event: Any, rule: str, remedy: str, key: str = "") -> ScenarioError:
        return ScenarioError(self.origin_at(event.start_mark.line + 1), key, rule, remedy)

    def _not_yaml(self, text: str, error: YAMLError) -> ScenarioError:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
        problem = problem.replace("\n", " ")[:200]
        remedy = "write `key: value` lines, indented with spaces"
        lines = text.split("\n")
        if mark and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
            problem, remedy = "a tab character where YAML allows only spaces", "indent with spaces, not tabs"
        return ScenarioError(self.origin_at(mark.line + 1 if mark else 0), "", f"this is not YAML: {problem}", remedy)


def _events(text: str) -> Iterator[Any]:
    """Yield the events of a YAML text."""
    loader = SafeLoader(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def _extent(children: Sequence[_Node], num_keys: int = 0) -> tuple[int, int]:
    """Return the number of nodes and the height of the value that holds ``children``."""
    num_nodes = 1 + num_keys + sum(node.num_nodes for node in children)
    return num_nodes, 1 + max((node.height for node in children), default=0)


def _plain(node: _Node) -> Any:
    """Return the node's value without lines."""
    if isinstance(node.value, dict):
        return {key: _plain(child) for key, (_, child) in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child) for child in node.value]
    return node.value


def _lines(node: _Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield every key path under ``node`` with the line of its key or list item."""
    if isinstance(node.value, dict):
        for key, (line, child) in node.value.items():
            yield (*path, key), line
            yield from _lines(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield (*path, index), child.line
            yield from _lines(child, (*path, index))
