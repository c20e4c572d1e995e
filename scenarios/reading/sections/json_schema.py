"""The JSON Schema of sections, their keys described by the docstrings below them.

It refuses null everywhere, as the loader does: leave a key out for its default.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta, json

from scenarios.reading.sections.markers import Checked, OneOf, Parsed
from scenarios.reading.sections.section import Key, Section, keys_of, plain_value, sections_in
from scenarios.reading.sections.section_reader import limits_of, optional_of

_TYPES: Final = {int: "integer", float: "number", bool: "boolean", str: "string"}
_LIMITS: Final = {"le": "maximum", "lt": "exclusiveMaximum", "ge": "minimum", "gt": "exclusiveMinimum"}
_LENGTHS: Final = {
    "string": {"min_length": "minLength", "max_length": "maxLength"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"max_length": "maxProperties"},
}


def definitions_of(section: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema of a section and of all sections below it, by name."""
    found: dict[str, Any] = {}
    waiting = [section]
    while waiting:
        each = waiting.pop()
        if each.__name__ not in found:
            found[each.__name__] = _mapping(each)
            waiting += [inner for key in keys_of(each).values() for inner in sections_in(key.annotation)]
    return found


def _mapping(section: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema of one section."""
    described = _docstrings(section)
    keys = keys_of(section)
    schema: dict[str, Any] = {
        "additionalProperties": False,
        "description": inspect.cleandoc(section.__doc__ or ""),
        "properties": {name: _of_key(name, key, described.get(name)) for name, key in keys.items()},
        "required": [name for name, key in keys.items() if key.is_required],
        "title": section.__name__,
        "type": "object",
    }
    return schema if schema["required"] else {key: value for key, value in schema.items() if key != "required"}


def _of_key(name: str, key: Key, description: str | None) -> dict[str, Any]:
    schema = _of(key.annotation)
    if "$ref" not in schema:
        schema["title"] = name.replace("_", " ").title()
    if key.default is not None:
        schema["default"] = json.decode(json.encode(plain_value(key.default)))
    if description is not None:
        schema["description"] = description
    return dict(sorted(schema.items()))


def _of(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of the values of an annotation."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _marked(annotation)
    if origin is Literal:
        return {"type": "string", **({"const": inner[0]} if len(inner) == 1 else {"enum": list(inner)})}
    if origin in {Union, UnionType}:
        return _of(optional_of(annotation))
    if origin is tuple:
        return {"type": "array", "items": _of(inner[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(inner[1])}
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    return {"type": _TYPES[annotation]}


def _marked(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of the values of an annotation with marks."""
    added: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for mark in annotation.__metadata__:
        match mark:
            case Parsed():
                return dict(mark.schema)
            case OneOf():
                return {"oneOf": [_of(form) for form in get_args(annotation.__origin__)]}
            case Checked():
                added |= mark.schema
            case Meta():
                limits |= limits_of(mark)
    schema = _of(annotation.__origin__)
    words = _LIMITS | _LENGTHS.get(schema["type"], {})
    return schema | {words[name]: limit for name, limit in limits.items()} | added


def _docstrings(section: type[Section]) -> dict[str, str]:
    """Return the docstring of each key of a section, its own and those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, Section) and owner is not Section:
            found |= _own_docstrings(owner)
    return found


def _own_docstrings(section: type[Section]) -> dict[str, str]:
    """Return the docstring under each annotated name in the source of a class."""
    parsed = _classes_of(sys.modules[section.__module__])[section.__name__]
    found: dict[str, str] = {}
    for field, below in zip(parsed.body, parsed.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found


@cache
def _classes_of(module: ModuleType) -> Mapping[str, ast.ClassDef]:
    """Return the classes at the top of a module's source, parsed once for all of them."""
    parsed = ast.parse(inspect.getsource(module))
    return {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}
