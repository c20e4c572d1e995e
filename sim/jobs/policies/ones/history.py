"""The history from which the predictor learns: the epochs of jobs that are done, and the network fitted to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job
from sim.jobs.policies.ones.predictor import Network, epoch_rows, fitted


@dataclass(frozen=True)
class History:
    """``jobs``: those that were active, by index; ``rows``: features and progress of each epoch of jobs that are done.

    ``fitted_rows``: their number at the last fit of ``network``.
    """

    network: Network
    jobs: Mapping[int, Job] = field(default_factory=dict)
    rows: tuple[tuple[list[float], float], ...] = ()
    fitted_rows: int = 0

    def caught_up(
        self, active: Sequence[ActiveJob], growth: float, random: Callable[[int], np.random.Generator]
    ) -> "History":
        """Return the history with the jobs that are done since; fitted anew if its rows have grown by a factor.

        ``random``: the generator for a fit to a number of rows.
        """
        jobs = {each.index: each.job for each in active}
        done = [job for index, job in self.jobs.items() if index not in jobs]
        rows = self.rows + tuple(pair for job in done for pair in zip(*epoch_rows(job), strict=True))
        network, fitted_rows = self.network, self.fitted_rows
        if done and rows and len(rows) >= growth * fitted_rows:
            table, progress = np.array([row for row, _ in rows]), np.array([each for _, each in rows])
            network, fitted_rows = fitted(table, progress, random(len(rows))), len(rows)
        return History(network, jobs, rows, fitted_rows)
