"""The history from which the predictor learns: the epochs of jobs that are done, and the network fitted to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job
from sim.jobs.policies.ones.predictor import Network, drawn, epoch_rows, fitted

Rows = tuple[tuple[list[float], float], ...]


@dataclass(frozen=True)
class History:
    """``jobs``: those that were active, by index; ``rows``: features and progress of each epoch of jobs that are done.

    ``fitted_rows``: their number at the last fit of ``network``.
    """

    network: Network
    jobs: Mapping[int, Job] = field(default_factory=dict)
    rows: Rows = ()
    fitted_rows: int = 0

    @classmethod
    def of(cls, past: Sequence[Job], random: np.random.Generator) -> "History":
        """Return the history of past jobs, fitted to their epochs; of none, with a network that is drawn."""
        rows = _rows(past)
        if not rows:
            return cls(drawn(random))
        return cls(_fitted(rows, random), rows=rows, fitted_rows=len(rows))

    def caught_up(
        self, active: Sequence[ActiveJob], growth: float, random: Callable[[int], np.random.Generator]
    ) -> "History":
        """Return the history with the jobs that are done since; fitted anew if its rows have grown by a factor.

        ``random``: the generator for a fit to a number of rows.
        """
        jobs = {each.index: each.job for each in active}
        done = [job for index, job in self.jobs.items() if index not in jobs]
        rows = self.rows + _rows(done)
        network, fitted_rows = self.network, self.fitted_rows
        if done and rows and len(rows) >= growth * fitted_rows:
            network, fitted_rows = _fitted(rows, random(len(rows))), len(rows)
        return History(network, jobs, rows, fitted_rows)


def _rows(jobs: Sequence[Job]) -> Rows:
    """Return features and progress of each epoch of jobs that are done."""
    return tuple(pair for job in jobs for pair in zip(*epoch_rows(job), strict=True))


def _fitted(rows: Rows, random: np.random.Generator) -> Network:
    return fitted(np.array([row for row, _ in rows]), np.array([each for _, each in rows]), random)
