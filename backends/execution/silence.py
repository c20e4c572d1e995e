"""Detection of processes that no longer answer."""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

Name = TypeVar("Name")

SILENCE_S: Final = 45.0
"""Default limit of a rank's silence. With the time to end, a run ends within a minute."""
LOOK_S: Final = 1.0
"""Interval between two looks, and between two heartbeats of a process."""


class Silence(Generic[Name]):
    """The detector of processes without heartbeats for too long. It counts time in looks.

    A process beats from a thread of its own. So a process that computes for long still beats, and a stopped one does
    not. Time without looks does not count: if the looking program was stopped, it reports no other process.

        silence = Silence(["rank 0", "rank 1"], limit_s=45.0)
        silence.hear("rank 0")  # as often as it beats
        silence.look()  # every LOOK_S; ["rank 1"] after 45 looks
    """

    def __init__(self, names: Iterable[Name], limit_s: float) -> None:
        self._looks = dict.fromkeys(names, 0)
        self._most_looks = math.ceil(limit_s / LOOK_S)

    def hear(self, name: Name) -> None:
        """Record a heartbeat of a process."""
        if name in self._looks:
            self._looks[name] = 0

    def forget(self, name: Name) -> None:
        """Stop watching a process."""
        self._looks.pop(name, None)

    def look(self) -> Sequence[Name]:
        """Count one interval; return the processes that have been silent for the limit."""
        for name in list(self._looks):
            self._looks[name] += 1
        return [name for name, looks in self._looks.items() if looks >= self._most_looks]


def silent_ranks(ranks: Iterable[object], limit_s: float) -> str:
    """Return the error message for ranks that do not answer."""
    names = [str(rank) for rank in ranks]
    who = f"rank {names[0]} has" if len(names) == 1 else f"ranks {', '.join(names)} have"
    return (
        f"{who} not answered for {limit_s:g} s and the run was ended: stopped, out of memory, or its machine is gone;\n"
        "    look at its process; simulate execute --timeout allows more time"
    )
