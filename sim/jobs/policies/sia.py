"""Sia (Subramanya et al., SOSP 2023) on GPUs of one type: an integer program chooses each job's GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sim.jobs.active import ActiveJob
from sim.jobs.policies.shares import Shared, rate
from sim.jobs.policy import View

POWER = -0.5
LEFT_OUT_COST = 1.1
CHANGE_COST = 0.01
LEAST_FACTOR = 1e-3
"""Of a job that was rescaled so often that another change would never pay."""


def rescale_factor(age_s: float, num_changes: int, penalty_s: float) -> float:
    """Return the fraction of its speed that a job keeps if its GPUs change: of its age, less that lost by changes."""
    if age_s < penalty_s:
        return 1.0
    return max(age_s - num_changes * penalty_s, 0.0) / (age_s + penalty_s)


@dataclass(frozen=True)
class Sia(Shared):
    """Minimise the sum of (speed, relative to the slowest choice) to the power of -1/2, plus a cost per job left out.

    Choices of a job are 1, 2, 4, ... GPUs of a node and then whole nodes, up to twice what it holds. A change
    multiplies the speed by ``rescale_factor``. ``penalty_s``: assumed cost of a change.
    """

    penalty_s: float = 30.0
    name, why = "sia", "the choice of the integer program"

    def shares(self, view: View) -> Mapping[int, int]:
        """Return the shares."""
        rows = [(each, count) for each in view.active for count in self._choices(view, each)]
        if not rows:
            return {}
        costs = np.array([self._cost(view, each, count) for each, count in rows]) - LEFT_OUT_COST
        sizes = np.array([count for _, count in rows], dtype=float)
        places = {each.index: place for place, each in enumerate(view.active)}
        one_each = np.zeros((len(places), len(rows)))
        one_each[[places[each.index] for each, _ in rows], np.arange(len(rows))] = 1.0
        found = milp(
            costs,
            constraints=[LinearConstraint(one_each, ub=1.0), LinearConstraint(sizes[None, :], ub=float(view.capacity))],
            integrality=np.ones(len(rows)),
            bounds=Bounds(0.0, 1.0),
        )
        if found.x is None:
            raise ValueError(f"the integer program of {len(places)} jobs has no solution: {found.message}")
        return {each.index: count for (each, count), chosen in zip(rows, found.x, strict=True) if chosen > 0.5}

    def _choices(self, view: View, each: ActiveJob) -> Sequence[int]:
        """Return the numbers of GPUs that a job may get now."""
        per_node = max(view.gpus_per_node)
        in_node = [1 << power for power in range(per_node.bit_length()) if 1 << power < per_node]
        nodes = range(per_node, view.capacity + 1, per_node)
        most = min(each.job.most_gpus, max(1, 2 * each.num_gpus))
        return [count for count in (*in_node, *nodes) if count <= most]

    def _cost(self, view: View, each: ActiveJob, count: int) -> float:
        """Return the cost of a choice."""
        speed = rate(view, each, count) / min(rate(view, each, other) for other in self._choices(view, each))
        if count == each.num_gpus or each.first_start_s is None:
            return float(speed**POWER)
        changes = each.num_rescales + each.num_preemptions
        factor = rescale_factor(view.now_s - each.job.arrival_s, changes, self.penalty_s)
        return float((max(factor, LEAST_FACTOR) * speed) ** POWER) + CHANGE_COST
