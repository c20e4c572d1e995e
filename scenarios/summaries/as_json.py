"""Conversion of results to JSON values: the only place where frozen dataclasses become JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

ABSENT: Final = {"absent": True}
"""Metadata of a field that has no key in JSON where it is None; other fields are null then."""


def as_json(value: Any) -> Any:
    """Return a result as JSON holds it: dataclasses and mappings as mappings, their fields in order."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: as_json(held) for each, held in pairs if held is not None or not each.metadata.get("absent")}
    if isinstance(value, Mapping):
        return {key: as_json(held) for key, held in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(held) for held in value]
    return value
