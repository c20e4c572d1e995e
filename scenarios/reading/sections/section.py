"""The base class of sections, and what can be asked of them."""

from collections.abc import Iterator, KeysView, Mapping
from functools import cache
from typing import Any, TypeVar, dataclass_transform, get_args

from msgspec import NODEFAULT, Struct


class Key(Struct, frozen=True):
    """A key of a section: the annotation of its values, and its default."""

    annotation: Any
    default_or_none_stated: Any

    @property
    def is_required(self) -> bool:
        """Return whether a file has to write the key."""
        return self.default_or_none_stated is NODEFAULT

    @property
    def default(self) -> Any:
        """Return the value where a file leaves the key out; None for a key that it has to write."""
        return None if self.is_required else self.default_or_none_stated


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """A mapping of a scenario file. The annotated names of a class are its keys, their values the defaults.

    ``DrivesSection(capacity=1e12, bandwidth=7e9)`` holds the keys that are given, and finds the others in its class.
    The docstring of a key describes it in the JSON Schema. Values are not checked: ``read_section`` does that.
    """

    def __init__(self, **given: Any) -> None:
        keys = keys_of(type(self))
        wrong = [f"has no key {name}" for name in given if name not in keys]
        wrong += [f"needs the key {name}" for name, key in keys.items() if key.is_required and name not in given]
        if wrong:
            message = f"{type(self).__name__} {wrong[0]}"
            raise TypeError(message)
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> None:
        message = f"{type(self).__name__}.{name} cannot be changed"
        raise AttributeError(message)

    def __delattr__(self, name: str) -> None:
        message = f"{type(self).__name__}.{name} cannot be deleted"
        raise AttributeError(message)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((type(self), *_values(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


SectionType = TypeVar("SectionType", bound=Section)


def keys_of(section: type[Section]) -> Mapping[str, Key]:
    """Return the keys of a section by name: those that it inherits, then its own."""
    hashed: Any = section  # mypy takes the hash of a class for that of its instances
    return _keys_of(hashed)


@cache
def _keys_of(section: type[Section]) -> Mapping[str, Key]:
    found: dict[str, Key] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, Section):
            found |= {name: Key(kind, vars(owner).get(name, NODEFAULT)) for name, kind in owner.__annotations__.items()}
    return found


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """Yield the sections that an annotation names: one that may be left out, one form of several, those of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from sections_in(inner)


def written_keys(section: Section) -> KeysView[str]:
    """Return the keys that a file writes; the others have their defaults."""
    return vars(section).keys()


def values_of(section: Section) -> dict[str, Any]:
    """Return the value of every key, sections below as mappings of theirs."""
    return {name: plain_value(getattr(section, name)) for name in keys_of(type(section))}


def with_values(section: SectionType, **values: Any) -> SectionType:
    """Return a section with other values of some keys."""
    return type(section)(**vars(section) | values)


def plain_value(value: Any) -> Any:
    """Return a value, sections in it as mappings."""
    if isinstance(value, Section):
        return values_of(value)
    if isinstance(value, tuple):
        return tuple(plain_value(item) for item in value)
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return value


def _values(section: Section) -> tuple[Any, ...]:
    return tuple(getattr(section, name) for name in keys_of(type(section)))
