"""Errors of the cost models.

CostModelError (ValueError)
├── UnitError        a quantity without a number, or without a unit of the right dimension
├── CatalogueError   an unknown device, node or profile, or an entry that breaks the rules of the catalogue
├── KernelError      wrong inputs or attributes of a kernel
└── CollectiveError  a collective or group without a cost
    └── AlgorithmError   an algorithm that a collective does not have, or that cannot serve a group
"""

from collections.abc import Iterable
from typing import Final

_MOST_SHOWN: Final = 200


def shown(value: object) -> str:
    """Return a value for a message, cut off if it is long."""
    return _cut(repr(value))


def listed(names: Iterable[object]) -> str:
    """Return names for a message, without the last ones if there are many; ``nothing`` if there are none."""
    return _cut(", ".join(map(str, names))) or "nothing"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class CostModelError(ValueError):
    """An input without a cost."""


class UnitError(CostModelError):
    """A quantity that is not a number with a unit of the right dimension."""


class CatalogueError(CostModelError):
    """A name missing from the catalogue, or an entry that breaks its rules.

    ``nearest``: the most similar known names, best first; empty for a bad entry.
    ``path``: the keys and list indices of the error within an entry; empty if it is not in one place.
    """

    def __init__(self, message: str, nearest: tuple[str, ...] = (), path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest
        self.path = path


class KernelError(CostModelError):
    """Inputs or attributes that a kernel cannot take; the message names kernel, shapes and rule."""


class CollectiveError(CostModelError):
    """A collective or group that has no cost."""


class AlgorithmError(CollectiveError):
    """An algorithm that a kind of collective does not have, or that cannot serve a group."""

    def __init__(self, kind: str, algorithm: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.algorithm = algorithm
