"""The results of executed ranks. They need no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.plan.facts.rank_work import RankWork
from sim.plan.words.program import Plan

InstanceKey = tuple[str, int | None]
"""A buffer's name, and its micro-batch where it has an instance per micro-batch."""


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Live bytes of one step, each tensor rounded as the allocator rounds it.

    ``before_bytes[c]`` lives before call c, ``most_bytes[c]`` is the most inside it, at op ``most_at_op[c]`` of
    its task; ``after_bytes`` lives after the last call.
    """

    peak_bytes: int
    peak_by_kind_bytes: Mapping[str, int]
    before_bytes: list[int]
    most_bytes: list[int]
    most_at_op: list[int]
    after_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The largest error of every tensor, relative to the largest element of the reference's whole tensor."""

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


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank's results of the last step; times are those of the median step that counts. ``rank``: of the plan.

    ``starts_s`` and ``ends_s``: of every op in issue order, from the step's common origin; empty if ops were not timed.
    ``allocator_peak_bytes``: the device allocator's own figure, None on a CPU. ``values``: the kept buffers, by buffer
    and micro-batch, in float64. ``cpu_s``: processor time of all of the rank's threads in the step. ``sent_bytes``:
    bytes that this rank sent in collectives that ran as step lists, in all steps; 0 without such. ``host_peak_bytes``:
    the peak of its buffers on the host. ``work``: ops run and bytes sent, counted during the run. ``step_times_s``: of
    the steps that count, each as long as the job's slowest rank took.
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


@dataclass(frozen=True, slots=True)
class Execution:
    """One request, run: the results of all ranks in order."""

    plan: Plan
    ranks: tuple[RankResult, ...]

    @property
    def iteration_time_s(self) -> float:
        """Return the time of the median step, to the end of the last rank."""
        return max(result.step_s for result in self.ranks)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the times of all steps that count, in their order."""
        return self.ranks[0].step_times_s

    @property
    def check(self) -> CheckReport | None:
        """Return all ranks' checks in one (names lead with the rank), None where none was asked for."""
        reports = [(result.rank, result.check) for result in self.ranks if result.check is not None]
        if not reports:
            return None
        errors = {f"rank {rank}: {name}": error for rank, report in reports for name, error in report.errors.items()}
        return CheckReport(errors, reports[0][1].tolerance)
