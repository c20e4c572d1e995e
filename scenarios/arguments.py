"""Arguments of the functions of ``scenarios.api``, held at run time to the types that they are annotated with.

The command line reads words, and click refuses wrong ones. From Python anything may come, which no function below
would look at again: a misspelt choice would count as another one.
"""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from scenarios.errors import Origin, ScenarioError

_WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False", int: "a whole number", str: "a text", Path: "a pathlib.Path", NoneType: "None",
}  # fmt: skip
_MOST_SHOWN: Final = 100


def refuse_wrong(name: str, value: object, kind: Any) -> None:
    """Raise ScenarioError for an argument that is not of its type, or out of its bounds.

    refuse_wrong("detail", "rank", Literal["op", "task"] | None)  # one of 'op', 'task', or None
    """
    try:
        convert(value, kind)
    except ValidationError as error:
        rule = str(error)[0].lower() + str(error)[1:]
        raise ScenarioError(origin_of(name, value), name, rule, f"give {words_of(kind)}") from error


def refuse_wrong_fields(name: str, record: object, kind: type[Struct], known_as: str) -> None:
    """Raise ScenarioError for an argument that is no such record, or has a field that is not of its type.

    ``known_as``: the name of the record's class in ``scenarios.api``.
    """
    if not isinstance(record, kind):
        rule = f"expected `{known_as}`, got `{type(record).__name__}`"
        raise ScenarioError(origin_of(name, record), name, rule, f"give {known_as}(...)")
    for field in fields(kind):
        refuse_wrong(f"{name}.{field.name}", getattr(record, field.name), field.type)


def path_of(name: str, value: object) -> Path:
    """Return the path that a text or a path states. Raises ScenarioError for anything else."""
    if not isinstance(value, str | Path):
        rule = f"expected `str` or `Path`, got `{type(value).__name__}`"
        raise ScenarioError(origin_of(name, value), name, rule, "give the path as a text")
    return Path(value)


def origin_of(name: str, value: object) -> Origin:
    """Return the place of an argument: its call, ``jobs=0``."""
    return Origin(option=f"{name}={repr(value)[:_MOST_SHOWN]}")


def words_of(kind: Any) -> str:
    """Return what a type allows, in words."""
    kind = getattr(kind, "__value__", kind)
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin is Annotated:
        return f"{words_of(inner[0])}{''.join(_bounds(each) for each in inner[1:] if isinstance(each, Meta))}"
    if NoneType in inner:
        return ", or ".join(words_of(each) for each in inner)
    return f"a list, each item {words_of(inner[0])}"


def _bounds(meta: Meta) -> str:
    """Return the bounds of a number in words."""
    least = "" if meta.ge is None else f" from {meta.ge}"
    return least if meta.le is None else f"{least} to {meta.le}"
