"""What an annotation says of a key's values beside their type; limits are msgspec's ``Meta``.

``Annotated[float, Parsed(parse_multiple, {"type": "string"})]``: text that a function reads.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class RefusalError(ValueError):
    """A value that a function of a marker refuses, by a rule, and what to write in its place."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"{rule}; {remedy}")
        self.rule = rule
        self.remedy = remedy


class Parsed(Struct, frozen=True, eq=False):
    """Values that a function reads, whatever their type, or refuses. ``schema``: the JSON Schema of the values."""

    parse: Callable[[Any], Any]
    schema: Mapping[str, Any]


class Checked(Struct, frozen=True, eq=False):
    """Values that a function looks at after their type and limits. ``schema``: what the JSON Schema adds for it."""

    check: Callable[[Any], Any]
    schema: Mapping[str, Any] = {}


class OneOf(Struct, frozen=True, eq=False):
    """Values of one of several forms. The function returns the form's annotation, or None for a value of no form."""

    form_of: Callable[[object], Any]
