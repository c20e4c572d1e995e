"""The results of executed ranks. They need no torch."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.plan.facts.rank_work import RankWork
from sim.plan.words.program import Plan

InstanceKey = tuple[str, int | None]
"""A buffer's name, and its micro-batch where it has an instance per micro-batch."""


class MemoryAccount(Struct, frozen=True):
    """The live bytes of one step. Each tensor's size is rounded as the allocator rounds it.

    ``before_bytes[c]``: live bytes before call c. ``most_bytes[c]``: peak inside call c, at op ``most_at_op[c]`` of its
    task. ``after_bytes``: live bytes after the last call.
    """

    peak_bytes: int
    peak_by_kind_bytes: Mapping[str, int]
    before_bytes: list[int]
    most_bytes: list[int]
    most_at_op: list[int]
    after_bytes: int


class CheckReport(Struct, frozen=True):
    """The result of a check: each tensor's largest error, relative to the largest element of the reference tensor."""

    errors: Mapping[str, float]
    tolerance: float

    @property
    def worst(self) -> tuple[str, float]:
        """Return the tensor with the largest error, and the error; ("", 0) if nothing was compared."""
        return max(self.errors.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def passed(self) -> bool:
        """Return whether all errors are within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())


class RankResult(Struct, frozen=True):
    """One rank's results of the last step. Times are those of the median counted step.

    ``rank``: rank of the plan.
    ``starts_s``, ``ends_s``: times of every op in issue order, from the step's common origin; empty without op timing.
    ``allocator_peak_bytes``: peak reported by the device's allocator; None on a CPU.
    ``values``: kept buffers by name and micro-batch, in float64.
    ``cpu_s``: processor time of all threads of the rank in the step.
    ``sent_bytes``: bytes that this rank sent in collectives run as step lists, over all steps; 0 without step lists.
    ``host_peak_bytes``: peak of the rank's buffers in host memory.
    ``work``: ops and sent bytes, counted during the run.
    ``step_times_s``: times of the counted steps, each that of the job's slowest rank.
    """

    rank: int
    role: str
    starts_s: Sequence[float]
    ends_s: Sequence[float]
    step_s: float
    cpu_s: float
    memory: MemoryAccount
    check: CheckReport | None
    allocator_peak_bytes: int | None
    values: Mapping[InstanceKey, NDArray[np.float64]]
    sent_bytes: int = 0
    host_peak_bytes: int = 0
    work: RankWork = field(default_factory=RankWork)
    step_times_s: tuple[float, ...] = ()


class Execution(Struct, frozen=True):
    """The results of one executed request, by rank."""

    plan: Plan
    ranks: tuple[RankResult, ...]

    @property
    def iteration_time_s(self) -> float:
        """Return the time of the median step, until the last rank ends."""
        return max(result.step_s for result in self.ranks)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the times of all counted steps, in order."""
        return self.ranks[0].step_times_s

    @property
    def check(self) -> CheckReport | None:
        """Return the checks of all ranks as one report, with names that begin with the rank; None without a check."""
        return joined({result.rank: result.check for result in self.ranks})


def joined(reports: Mapping[int, CheckReport | None]) -> CheckReport | None:
    """Return the reports of ranks as one, with names that begin with the rank; None without a report."""
    found = {rank: report for rank, report in reports.items() if report is not None}
    if not found:
        return None
    errors = {f"rank {rank}: {name}": error for rank, report in found.items() for name, error in report.errors.items()}
    return CheckReport(errors, next(iter(found.values())).tolerance)
