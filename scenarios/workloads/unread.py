"""Keys that a kind of work has no use for: written, they are refused, as a result would not change with them.

Sections such as ``model`` and ``software`` are shared by several kinds of work, of which not each reads every key.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document


class Unread(Struct, frozen=True):
    """Keys that are not read, with the reason as a message says it.

    ``keys``: dotted. ``beside``: a key, or a key and its value (``training.optimizer=sgd``), beside which alone they
    are not read; empty: they never are. ``unless``: keys beside each of which they are.
    """

    keys: tuple[str, ...]
    rule: str
    remedy: str = "leave it out"
    beside: str = ""
    unless: tuple[str, ...] = ()

    def applies(self, data: Mapping[str, Any]) -> bool:
        """Return whether a file's keys are such that these are not read."""
        key, _, value = self.beside.partition("=")
        found = _value(data, key) if key else True
        is_beside = found == value if value else found is not None
        return is_beside and all(_value(data, other) is None for other in self.unless)

    def json_schemas(self) -> list[dict[str, Any]]:
        """Return the JSON Schemas of files that are refused, one for each key."""
        key, _, value = self.beside.partition("=")
        beside = [_written(key, {"const": value} if value else {})] if key else []
        beside += [{"not": _written(other, {})} for other in self.unless]
        return [{"allOf": [_written(each, {}), *beside], "description": self.rule} for each in self.keys]


def _written(key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of files in which a dotted key is written, with a value of a schema."""
    found = value
    for part in reversed(key.split(".")):
        found = {"type": "object", "properties": {part: found}, "required": [part]}
    return found


def refuse_unread(document: Document, unread: Iterable[Unread]) -> None:
    """Raise ScenarioError for the first key that is written and not read."""
    for each in unread:
        written = [key for key in each.keys if _value(document.data, key) is not None]
        if written and each.applies(document.data):
            raise ScenarioError(document.origin(written[0].split(".")), written[0], each.rule, each.remedy)


def _value(data: Mapping[str, Any], key: str) -> object:
    """Return the value of a dotted key; None where it is not written."""
    found: object = data
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
