"""The mean rank's seconds per step, from its roles, each weighted by its number of ranks."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from scenarios.summaries.steps.step import RoleSummary

RECOMPUTED: Final = "recomputed"
"""The key of recomputation in ``computing_s``."""


class RoleTimes(Protocol):
    """Equal ranks, and the parts of their time; seconds per step."""

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks."""

    @property
    def busy_s(self) -> Mapping[str, float]:
        """Return the seconds that each stream is busy."""

    @property
    def exposed_s(self) -> Mapping[str, float]:
        """Return the seconds of waiting, by the stream that ran during the wait."""


def mean_busy_s(roles: Sequence[RoleTimes]) -> dict[str, float]:
    """Return the seconds that each stream of the mean rank is busy."""
    return _mean([(role.num_ranks, role.busy_s) for role in roles])


def mean_exposed_s(roles: Sequence[RoleTimes]) -> dict[str, float]:
    """Return the mean rank's seconds of waiting, by the stream that ran during the wait."""
    return _mean([(role.num_ranks, role.exposed_s) for role in roles])


def mean_computing_s(roles: Sequence[RoleSummary]) -> dict[str, float]:
    """Return the seconds that the mean rank computes, by purpose."""
    return _mean([(role.num_ranks, role.computing_s) for role in roles])


def _mean(rows: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean seconds by name, with rows weighted by their numbers of ranks."""
    num_ranks = sum(count for count, _ in rows)
    total: dict[str, float] = {}
    for count, seconds_of in rows:
        for name, seconds in seconds_of.items():
            total[name] = total.get(name, 0.0) + seconds * count / num_ranks
    return total
