"""A digest of plain data by content: of plans, clusters, profiles and prices."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Final

import numpy as np
from msgspec import Struct

from costmodels.digest import blake2b
from sim.plan.words.program import Plan

_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None)})


def content_digest(value: object) -> bytes:
    """Return a digest of a value's content: equal for values of equal parts in the same order.

    Values are numbers, text, arrays, enums, sequences, sets, mappings, Structs and dataclasses. Fields whose names
    begin with an underscore are caches, and do not count. Raises TypeError for other objects, whose content is unknown.

        content_digest(Mesh((("dp", 2),))) == content_digest(Mesh((("dp", 2),)))
    """
    return blake2b(repr(_Flat().of(value)).encode(), digest_size=32).digest()


def plan_digest(plan: Plan) -> bytes:
    """Return a digest of a plan without its name and its seed, on which no time depends."""
    named = {name: getattr(plan, name) for name in plan.__struct_fields__ if name not in {"name", "seed"}}
    return content_digest(named)


class _Flat:
    """Converter of values into nested tuples of plain values; a part that occurs several times is converted once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Any]] = {}
        self._parts: dict[type, Callable[[Any], Any]] = {}

    def of(self, value: object) -> Any:
        """Return the nested tuples of a value."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        known = self._known.get(id(value))
        if known is None:
            if kind not in self._parts:
                self._parts[kind] = self._parts_of(kind)
            known = self._known[id(value)] = value, self._parts[kind](value)  # keep the value, so its id stays its own
        return known[1]

    def _parts_of(self, kind: type) -> Callable[[Any], Any]:
        """Return the function that converts values of a type. Raises TypeError for an unknown type."""
        if issubclass(kind, Enum):
            return lambda value: (kind.__qualname__, value.name)
        if issubclass(kind, Struct) or is_dataclass(kind):
            found = kind.__struct_fields__ if issubclass(kind, Struct) else [field.name for field in fields(kind)]
            names = [name for name in found if not name.startswith("_")]
            values = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]
            return lambda value: (kind.__qualname__, *self._all(values(value)))
        if issubclass(kind, np.ndarray):
            return lambda value: (value.dtype.str, value.shape, blake2b(np.ascontiguousarray(value).tobytes()).digest())
        if issubclass(kind, np.generic):
            return lambda value: (value.dtype.str, value.item())
        if issubclass(kind, Mapping):
            return lambda value: ("map", self._all(value.keys()), self._all(value.values()))
        if issubclass(kind, Set):
            return lambda value: ("set", *sorted([repr(self.of(item)) for item in value]))
        if issubclass(kind, tuple | list):
            return lambda value: (kind.__qualname__, *self._all(value))
        if issubclass(kind, range | PurePath):
            return lambda value: (kind.__qualname__, repr(value))
        raise TypeError(f"no digest of a {kind.__module__}.{kind.__qualname__}: its content is not known")

    def _all(self, values: Iterable[object]) -> list[Any]:
        return [value if type(value) in _PLAIN else self.of(value) for value in values]
