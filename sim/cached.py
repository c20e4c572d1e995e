"""Cached properties of what there are thousands of."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class unlocked_property(Generic[T]):  # noqa: N801  as ``property`` and ``cached_property``
    """``functools.cached_property`` without the lock that Python 3.11 takes at the first use, half of its cost.

    Two threads that ask at once may both find the value.
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find, self.__doc__ = find, find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn the name under which objects keep the value."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | Self:
        """Find an object's value and keep it; later uses of the name find it there, and do not come here."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._find(instance)
        return value
