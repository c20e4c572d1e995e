"""The limits of a job's GPUs in ONES (SC 2021), by the rules of its artifact.

A job starts on one GPU and may at most double every two epochs, once it holds what it was allowed. A job that has run
for long and holds half of the cluster shrinks. A job that waits loses half of its limit with each new schedule.
"""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

MOST_TIMES_ASKED = 4
"""Largest number of GPUs, divided by those that the user asked for."""


class Limit(Struct, frozen=True):
    """``most``: GPUs that the job may grow to; ``granted``: those that the search may give it now.

    ``scaled_epoch``, ``placed_epoch``: epochs it had done when its limit, and its slots, changed last.
    """

    most: int = 1
    granted: int = 0
    scaled_epoch: int = 0
    placed_epoch: int = 0

    def raised(self, held: int, asked: int, usable: int, epoch: int) -> "Limit":
        """Return the limit of a running job after two epochs; ``usable``: GPUs that job and cluster allow."""
        most = min(usable, 2 * self.most) if held >= self.most else self.most
        granted = max(held, min(most, MOST_TIMES_ASKED * asked))
        changed = (most, granted) != (self.most, self.granted)
        return replace(self, most=most, granted=granted, scaled_epoch=epoch if changed else self.scaled_epoch)

    def waited(self) -> "Limit":
        """Return the limit of a stopped job that a new schedule leaves out."""
        half = max(1, self.granted // 2)
        return replace(self, most=half, granted=half)


def shrunk(held: int, ratio: float, factor: float = 1.0) -> int:
    """Return the GPUs of a job whose run time is ``ratio`` times the median; even, as in the artifact."""
    new = max(1, int(2 * held / (factor * ratio + 1.0)))
    return new + new % 2


def lowered(limit: Limit, held: int, runtime_s: float, runtimes_s: Sequence[float], epoch: int) -> Limit:
    """Return the limit of the largest running job; it changes where the job ran for longer than the median."""
    usual_s = median(runtimes_s)
    if runtime_s <= usual_s or usual_s <= 0.0:
        return limit
    return replace(limit, granted=min(held, shrunk(held, runtime_s / usual_s)), scaled_epoch=epoch)
