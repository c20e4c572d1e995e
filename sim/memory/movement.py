"""Policies of movement: when the parameters of a unit may begin to come to the device.

A pass uses units of parameters, such as layers, one after the other. A unit must be on the device from the first op
that reads it to the last one, and is let go then. Policies are pure functions of these stays.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Stay(Struct, frozen=True):
    """A stay of a unit on the device: ops number ``first`` to ``last``, in issue order, read it.

    ``num_bytes``: size of the whole unit's parameters.
    """

    unit: str
    first: int
    last: int
    num_bytes: int


class BudgetError(ValueError):
    """Memory that is too small for a unit beside those that are used at the same time."""

    def __init__(self, unit: str, needed_bytes: int, budget_bytes: int) -> None:
        super().__init__(f"unit {unit} needs {needed_bytes} bytes with those used beside it, of {budget_bytes}")
        self.unit, self.needed_bytes, self.budget_bytes = unit, needed_bytes, budget_bytes


class Movement(Protocol):
    """A policy of movement."""

    def triggers(self, stays: Sequence[Stay]) -> list[int]:
        """Return one trigger per stay: the number of an op. The unit begins to move once all ops before it have ended.

        ``stays``: in the order of their first ops. Triggers never decrease; none is later than its stay's ``first``.
        """


class Window(Struct, frozen=True):
    """A fixed number of units ahead of the one in use; 0: a unit comes when it is needed (on demand).

    FSDP's and DeepSpeed's rule, counted in units. Example: ``Window(1).triggers(stays)``.
    """

    units_ahead: int

    def triggers(self, stays: Sequence[Stay]) -> list[int]:
        """Return for each stay the first op of the stay ``units_ahead`` places before it; see ``Movement``."""
        places = (place - self.units_ahead for place in range(len(stays)))
        return [stays[place].first if place > 0 else 0 for place in places]


class Earliest(Struct, frozen=True):
    """As early as memory allows, by the lifetimes of all units (Angel-PTM; Nie et al., VLDB 2023).

    ``budget_bytes``: memory for units that are on the device or on their way.
    """

    budget_bytes: int

    def triggers(self, stays: Sequence[Stay]) -> list[int]:
        """Return for each stay the earliest op from which it fits until its end; see ``Movement``.

        Raises BudgetError if units do not even fit when each comes at its own first op.
        """
        self._check(stays)
        resident_bytes, triggers = _nothing_resident(stays), [0]
        for stay in stays:
            earliest = triggers[-1]
            full = np.flatnonzero(resident_bytes[earliest : stay.last + 1] + stay.num_bytes > self.budget_bytes)
            triggers.append(earliest + int(full[-1]) + 1 if len(full) else earliest)
            resident_bytes[triggers[-1] : stay.last + 1] += stay.num_bytes
        return triggers[1:]

    def _check(self, stays: Sequence[Stay]) -> None:
        resident_bytes = _nothing_resident(stays)
        for stay in stays:
            resident_bytes[stay.first : stay.last + 1] += stay.num_bytes
        needed_bytes = int(resident_bytes.max(initial=0))
        if needed_bytes > self.budget_bytes:
            op = int(resident_bytes.argmax())
            unit = next(stay.unit for stay in reversed(stays) if stay.first <= op <= stay.last)
            raise BudgetError(unit, needed_bytes, self.budget_bytes)


def still_there(stays: Sequence[Stay], budgets_bytes: Sequence[int]) -> list[bool]:
    """Return for each stay whether its unit is still on the device from its stay before (Belady 1966).

    Units stay when they are no longer used. When they need more than the budget as a stay begins, those go whose next
    use is furthest.

    ``stays``: in the order of their first ops. ``budgets_bytes``: by stay, the memory of all units on the device.
    Raises BudgetError if units that are used at the same time do not fit.
    """
    there: dict[str, Stay] = {}
    found = []
    for place, (stay, budget_bytes) in enumerate(zip(stays, budgets_bytes, strict=True)):
        found.append(stay.unit in there)
        there[stay.unit] = stay
        used_bytes = sum(other.num_bytes for other in there.values())
        while used_bytes > budget_bytes:
            idle = [unit for unit, other in there.items() if other.last < stay.first]
            if not idle:
                raise BudgetError(stay.unit, used_bytes, budget_bytes)
            used_bytes -= there.pop(max(idle, key=lambda unit: _next_use(stays, place, unit))).num_bytes
    return found


def _next_use(stays: Sequence[Stay], place: int, unit: str) -> int:
    """Return the place of a unit's next stay, or the number of all stays."""
    return next((later for later in range(place + 1, len(stays)) if stays[later].unit == unit), len(stays))


def _nothing_resident(stays: Sequence[Stay]) -> NDArray[np.int64]:
    """Return zero bytes for each op."""
    return np.zeros(max((stay.last for stay in stays), default=-1) + 1, dtype=np.int64)
