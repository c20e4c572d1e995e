"""The cost of a simulation, said before it is paid."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from costmodels.units import format_bytes, format_time
from scenarios.this_computer import physical_memory_bytes

LONG_S: Final = 10.0
"""Simulations of a shorter prediction are not announced."""


class Effort(Struct, frozen=True):
    """What a simulation takes: ranks of the job, ranks and ops that are simulated, and the time and memory of that.

    Time and memory are predictions from counts, for one core of 2024; most are right within a factor of two.
    """

    num_ranks: int
    num_simulated: int
    num_ops: int
    time_s: float
    memory_bytes: float

    @property
    def is_long(self) -> bool:
        """Return whether it is worth a word before it begins."""
        return self.time_s >= LONG_S

    @property
    def words(self) -> str:
        """Return all of it in a line, and whether this computer has the memory."""
        ranks = f"{self.num_simulated:,} of {self.num_ranks:,} ranks, {self.num_ops:,} ops"
        words = f"{ranks}: about {_round_time(self.time_s)} and {format_bytes(self.memory_bytes)} of memory"
        have = physical_memory_bytes()
        return words if self.memory_bytes <= have else f"{words}, more than the {format_bytes(have)} of this computer"


Announce = Callable[[Effort], None]
"""Called with what a simulation will take, before it is run."""


def _round_time(time_s: float) -> str:
    """Return a predicted time without digits that it does not have."""
    minutes = time_s / 60.0
    if minutes < 2.0:
        return format_time(float(round(time_s)))
    return f"{minutes:.0f} minutes" if minutes < 120.0 else f"{minutes / 60.0:.0f} hours"
