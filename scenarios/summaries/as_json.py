"""Conversion of results to JSON values: the only place where frozen dataclasses become JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any, Final

from msgspec import Struct

ABSENT: Final = {"absent": True}
"""Metadata of a field whose key is absent from JSON if the value is None; other fields become null."""
INLINE: Final = {"inline": True}
"""Metadata of a field without its own key in JSON: its value's keys take its place, none for None."""


def as_json(value: Any) -> Any:
    """Return a result as JSON values: dataclasses and mappings become mappings, with fields in order."""
    if isinstance(value, Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for each in fields(value):
            found |= _keys(each, getattr(value, each.name))
        return found
    if isinstance(value, Mapping):
        return {key: as_json(held) for key, held in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(held) for held in value]
    return value


def _keys(each: Field[Any], held: Any) -> dict[str, Any]:
    """Return the JSON keys and values of a field."""
    if held is None and (each.metadata.get("absent") or each.metadata.get("inline")):
        return {}
    if each.metadata.get("inline"):
        inner: dict[str, Any] = as_json(held)
        return inner
    return {each.name: as_json(held)}
