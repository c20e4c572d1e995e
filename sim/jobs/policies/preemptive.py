"""Policies that rank all jobs at each decision, and stop those that the first ones leave no GPUs for."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.policy import Change, Memoryless, View, first_gangs

ROUNDING: Final = 1e-9
"""Relative error of a remaining time."""


class Ranked(Memoryless):
    """Let the jobs of least ``key`` run as gangs; a job that does not fit is skipped."""

    name, why = "", ""

    @abstractmethod
    def key(self, each: ActiveJob, now_s: float) -> float:
        """Return the rank of a job; the least first, then the order of arrival."""

    def changes(self, view: View) -> Sequence[Change]:
        """Return starts and stops."""
        now_s = view.now_s
        return first_gangs(view, lambda each: (self.key(each, now_s), each.index), self.why)


class ShortestRemainingTime(Ranked):
    """The job of the least remaining time on its requested GPUs runs first; its duration is known."""

    name, why = "srtf", "least remaining time"

    def key(self, each: ActiveJob, now_s: float) -> float:
        """Return the remaining seconds."""
        return each.remaining_s(now_s)

    @property
    def ranking(self) -> Ranking:
        """Return the order: a running job has no more left than the time until it would be done, restart included."""
        return Ranking(
            waiting=lambda each, now_s: (each.remaining_s(now_s), each.index),
            running=lambda each, now_s: (max(each.finish_s(), each.ready_s + each.remaining_s(now_s)), each.index),
            most=lambda place, now_s: ((place[0] - now_s) * (1.0 + ROUNDING) + ROUNDING, 0),
        )


class ShortestRemainingService(Ranked):
    """The job of the least remaining time multiplied by GPUs runs first; its duration is known."""

    name, why = "srsf", "least remaining service"

    def key(self, each: ActiveJob, now_s: float) -> float:
        """Return the remaining GPU-seconds."""
        return each.remaining_s(now_s) * each.job.num_gpus


@dataclass(frozen=True)
class LeastAttainedService(Ranked):
    """The job with the least service so far runs first, decided anew every ``quantum_s``.

    Equal jobs would change places at every instant without the quantum.
    """

    quantum_s: float = 60.0
    name, why = "las", "least attained service"

    def key(self, each: ActiveJob, now_s: float) -> float:
        """Return the attained GPU-seconds."""
        return each.attained_gpu_s(now_s)

    def wake_s(self, view: View) -> float | None:
        """Return the end of the quantum while jobs wait."""
        return view.now_s + self.quantum_s if view.waiting else None
