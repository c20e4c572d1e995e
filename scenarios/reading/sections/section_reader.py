"""Read data into a section, or find all rules that they break.

The rule of a key is made from its annotation when data first have the key: few files have many of them.
Types are strict: ``"8"``, ``8.0`` and ``true`` are not 8. Numbers are finite, and whole ones stand for floats, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta, Struct

from scenarios.reading.sections.markers import Checked, OneOf, Parsed, RefusalError
from scenarios.reading.sections.section import Section, SectionType, keys_of

KeyPath = tuple[str | int, ...]

BROKEN: Final = object()
"""In the place of a value that breaks a rule."""
_LIMITS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("le", "less_than_equal", lambda value, limit: value <= limit),
    ("lt", "less_than", lambda value, limit: value < limit),
    ("ge", "greater_than_equal", lambda value, limit: value >= limit),
    ("gt", "greater_than", lambda value, limit: value > limit),
)


class Problem(Struct, frozen=True):
    """A broken rule. ``kind`` is pydantic's name of it; ``owner``: the section whose key the path ends at."""

    path: KeyPath
    kind: str
    value: object
    context: Mapping[str, Any]
    owner: type[Section]


class BrokenRulesError(ValueError):
    """Data that are no section, with everything wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, each.path))}: {each.kind}" for each in problems))
        self.problems = problems


class Place(Struct, frozen=True):
    """Where a value stands: its path, the section of its key, and the problems that were found so far."""

    path: KeyPath
    owner: type[Section]
    problems: list[Problem]

    def below(self, part: str | int) -> "Place":
        """Return the place of an item of this value."""
        return Place((*self.path, part), self.owner, self.problems)

    def refuse(self, kind: str, value: object, **context: Any) -> object:
        """Note a broken rule, and return what stands for the value."""
        self.problems.append(Problem(self.path, kind, value, context, self.owner))
        return BROKEN


Reader = Callable[[Any, Place], Any]
"""Returns the value as the section holds it, or BROKEN."""


def read_section(section: type[SectionType], data: object) -> SectionType:
    """Return data as a section. Raises BrokenRulesError for the rules that they break."""
    problems: list[Problem] = []
    found: Any = _section(section)(data, Place((), section, problems))
    if problems:
        raise BrokenRulesError(problems)
    read: SectionType = found
    return read


def _section(section: type[Section]) -> Reader:
    keys = keys_of(section)
    hashed: Any = section  # mypy takes the hash of a class for that of its instances

    def read(value: Any, place: Place) -> Any:
        if isinstance(value, section):
            return value
        if not isinstance(value, dict):
            return place.refuse("model_type", value)
        num_problems = len(place.problems)
        given = {}
        for name, key in keys.items():
            at = Place((*place.path, name), section, place.problems)
            if name in value:
                given[name] = _reader_of_key(hashed, name)(value[name], at)
            elif key.is_required:
                at.refuse("missing", value)
        for name in value:
            if name not in keys:
                Place((*place.path, name), section, place.problems).refuse("extra_forbidden", value[name])
        return section(**given) if len(place.problems) == num_problems else BROKEN

    return read


@cache
def _reader_of_key(section: type[Section], name: str) -> Reader:
    return _reader_of(keys_of(section)[name].annotation)


def _reader_of(annotation: Any, limits: Mapping[str, Any] | None = None) -> Reader:
    """Return what reads values of an annotation, within limits that were written around it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _marked(annotation.__origin__, annotation.__metadata__)
    if origin is Literal:
        return _choice(inner)
    if origin in {Union, UnionType}:
        return _or_none(annotation)
    if origin is tuple:
        return _list(_reader_of(inner[0]), limits or {})
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _mapping(_reader_of(inner[1]), limits or {})
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _section(annotation)
    return _SCALARS[annotation](limits or {})


def _marked(annotation: Any, marks: Iterable[Any]) -> Reader:
    """Return what reads values of an annotation with marks."""
    limits: dict[str, Any] = {}
    check: Callable[[Any], Any] | None = None
    for mark in marks:
        match mark:
            case Parsed():
                return _parsed(mark.parse)
            case OneOf():
                return _form(mark.form_of)
            case Checked():
                check = mark.check
            case Meta():
                limits |= limits_of(mark)
    read = _reader_of(annotation, limits)
    return read if check is None else _checked(read, check)


def limits_of(mark: Meta) -> dict[str, Any]:
    """Return the limits that a mark states, by name."""
    names = ("le", "lt", "ge", "gt", "min_length", "max_length")
    return {name: limit for name in names if (limit := getattr(mark, name)) is not None}


def _parsed(parse: Callable[[Any], Any]) -> Reader:
    def read(value: Any, place: Place) -> Any:
        try:
            return parse(value)
        except RefusalError as refusal:
            return place.refuse("rule", value, rule=refusal.rule, remedy=refusal.remedy)

    return read


def _checked(inner: Reader, check: Callable[[Any], Any]) -> Reader:
    def read(value: Any, place: Place) -> Any:
        found = inner(value, place)
        return found if found is BROKEN else _parsed(lambda written: check(found))(value, place)

    return read


def _form(form_of: Callable[[object], Any]) -> Reader:
    def read(value: Any, place: Place) -> Any:
        form = form_of(value)
        return place.refuse("union_tag_invalid", value) if form is None else _reader_of(form)(value, place)

    return read


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, place: Place) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        return place.refuse("literal_error", value, choices=choices)

    return read


def _or_none(annotation: Any) -> Reader:
    inner = _reader_of(optional_of(annotation))
    return lambda value, place: None if value is None else inner(value, place)


def optional_of(annotation: Any) -> Any:
    """Return ``X`` of ``X | None``. Raises TypeError for other unions: ``OneOf`` says which form a value has."""
    options = [option for option in get_args(annotation) if option is not NoneType]
    if len(options) != 1:
        message = f"{annotation} needs a mark that says which form a value has"
        raise TypeError(message)
    return options[0]


def _list(item: Reader, limits: Mapping[str, Any]) -> Reader:
    """Return what reads a list. One that is too long as it is written is refused as a whole, and no item is read."""
    least, most = limits.get("min_length", 0), limits.get("max_length")

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, list | tuple):
            return place.refuse("tuple_type", value)
        if most is not None and len(value) > most:
            return place.refuse("too_long", value, max_length=most, actual_length=len(value))
        found = tuple(item(each, place.below(number)) for number, each in enumerate(value))
        if any(each is BROKEN for each in found):
            return BROKEN
        if len(found) < least:
            return place.refuse("too_short", value, min_length=least, actual_length=len(found))
        return found

    return read


def _mapping(item: Reader, limits: Mapping[str, Any]) -> Reader:
    most = limits.get("max_length")

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            return place.refuse("dict_type", value)
        if most is not None and len(value) > most:
            return place.refuse("too_long", value, max_length=most, actual_length=len(value))
        found = {name: item(each, place.below(name)) for name, each in value.items() if isinstance(name, str)}
        for name in value:
            if not isinstance(name, str):
                place.below(name).refuse("string_type", name)
        return BROKEN if len(found) < len(value) or any(each is BROKEN for each in found.values()) else found

    return read


def _within(limits: Mapping[str, Any]) -> Reader:
    """Return what holds a number to limits, and refuses it as it is written."""
    stated = [(name, kind, holds, limits[name]) for name, kind, holds in _LIMITS if name in limits]

    def read(value: Any, place: Place) -> Any:
        for name, kind, holds, limit in stated:
            if not holds(value, limit):
                return place.refuse(kind, value, **{name: limit})
        return value

    return read


def _whole(limits: Mapping[str, Any]) -> Reader:
    within = _within(limits)

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return place.refuse("int_type", value)
        return within(value, place)

    return read


def _number(limits: Mapping[str, Any]) -> Reader:
    within = _within({name: float(limit) for name, limit in limits.items()})

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return place.refuse("float_type", value)
        try:
            number = float(value)
        except OverflowError:
            return place.refuse("float_type", value)
        if not math.isfinite(number):
            return place.refuse("finite_number", value)
        return number if within(value, place) is not BROKEN else BROKEN

    return read


def _switch(limits: Mapping[str, Any]) -> Reader:
    del limits
    return lambda value, place: value if isinstance(value, bool) else place.refuse("bool_type", value)


def _text(limits: Mapping[str, Any]) -> Reader:
    least, most = limits.get("min_length", 0), limits.get("max_length")

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, str):
            return place.refuse("string_type", value)
        if len(value) < least:
            return place.refuse("string_too_short", value, min_length=least)
        if most is not None and len(value) > most:
            return place.refuse("string_too_long", value, max_length=most)
        return value

    return read


_SCALARS: Final[Mapping[Any, Callable[[Mapping[str, Any]], Reader]]] = {
    int: _whole, float: _number, bool: _switch, str: _text,
}  # fmt: skip
