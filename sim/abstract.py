"""Abstract records."""

from abc import ABCMeta

from msgspec import Struct, StructMeta


class _Meta(StructMeta, ABCMeta):
    """The type of Structs that have abstract methods, or derive from a class that has some."""


class AbstractStruct(Struct, frozen=True, metaclass=_Meta):
    """A frozen Struct that may have abstract methods, or derive from a class that has some, such as ``Sequence``."""
