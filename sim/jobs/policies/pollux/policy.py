"""Pollux (Qiao et al., OSDI 2021): every round, the allocation with the largest mean speedup of the jobs' goodput.

A job's speedup is its speed over that on an equal share of the cluster. The mean is one to the power of -1, so that
slow jobs count most. Durations are not known, and neither is the speed of a job that never ran: it is taken to grow
with its GPUs. Others that choose their batch by a fit to what they measured have the speed that it predicts; of the
rest the speed is known on all GPUs up to the limit, as if the fit were exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.placement import Placement
from sim.jobs.policies.pollux.search import Floats, Ints, Problem, evolved
from sim.jobs.policies.shares import rate
from sim.jobs.policies.sia import rescale_factor
from sim.jobs.policy import Change, Decision, View

ROUNDING: Final = 1e-9
"""Relative error of the end of a round."""
MOST_GPUS: Final = 64
"""Of a job."""


@dataclass(frozen=True)
class PolluxState:
    """The state between rounds: GPUs on nodes of each job in every allocation, and the most that each has held.

    ``rows``: by job, shape (allocations, nodes). ``nodes``: GPUs of each node then.
    """

    num_rounds: int = 0
    ends_s: float = 0.0
    nodes: tuple[int, ...] = ()
    rows: Mapping[int, Ints] = field(default_factory=dict)
    most_held: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pollux:
    """The policy. ``round_s``: between searches. ``penalty_s``: assumed cost of a change. ``avoids``: see Problem."""

    seed: int = 0
    round_s: float = 60.0
    population_size: int = 100
    generations: int = 100
    penalty_s: float = 30.0
    avoids: bool = True
    name = "pollux"
    watched_gpu_s: tuple[float, ...] = ()
    ranking: Ranking | None = None

    def start(self) -> PolluxState:
        """Return the state before the first round."""
        return PolluxState()

    def decide(self, state: PolluxState, view: View) -> tuple[PolluxState, Decision]:
        """Return the state and the changes of a round; within a round, jobs go on as they are."""
        if view.now_s * (1.0 + ROUNDING) < state.ends_s:
            return state, Decision(wake_s=state.ends_s)
        jobs = sorted(view.active, key=lambda each: (each.attained_gpu_s(view.now_s), each.index))
        most_held = {each.index: max(state.most_held.get(each.index, 0), each.num_gpus) for each in jobs}
        problem = self._problem(view, jobs, most_held)
        random = np.random.default_rng([self.seed, state.num_rounds])
        begin = self._begin(state, view, jobs, problem.held)
        population = evolved(problem, begin, self.population_size, self.generations, random)
        rows = {each.index: population[:, place] for place, each in enumerate(jobs)}
        ends_s = view.now_s + self.round_s
        state = PolluxState(state.num_rounds + 1, ends_s, tuple(view.gpus_per_node), rows, most_held)
        changes = [
            Change(each, int(row.sum()), "the fittest allocation", _placement(row))
            for each, row, now in zip(jobs, population[0], problem.held, strict=True)
            if (row != now).any()
        ]
        return state, Decision(changes, ends_s)

    def _begin(self, state: PolluxState, view: View, jobs: Sequence[ActiveJob], held: Ints) -> Ints:
        """Return the allocations to begin with: the present one, and those of the round before; new jobs have none."""
        if state.nodes != tuple(view.gpus_per_node) or not state.rows:
            return held[None]
        size = len(next(iter(state.rows.values())))
        none = np.zeros((size, len(view.gpus_per_node)), dtype=np.int64)
        return np.concatenate([held[None], np.stack([state.rows.get(each.index, none) for each in jobs], axis=1)])

    def _problem(self, view: View, jobs: Sequence[ActiveJob], most_held: Mapping[int, int]) -> Problem:
        held = np.zeros((len(jobs), len(view.gpus_per_node)), dtype=np.int64)
        for place, each in enumerate(jobs):
            for node, count in each.placement:
                held[place, node] = count
        most = [min(2 * max(1, most_held[each.index]), MOST_GPUS, each.job.most_gpus, view.capacity) for each in jobs]
        kept = [self._kept(view, each) for each in jobs]
        speedups = _Speedups(view, jobs, most)
        nodes = np.array(view.gpus_per_node, dtype=np.int64)
        return Problem(held, nodes, np.array(most), np.array(kept), speedups.of, self.avoids)

    def _kept(self, view: View, each: ActiveJob) -> float:
        """Return the fraction of its speedup that a job keeps if its GPUs change."""
        if each.first_start_s is None:
            return 1.0
        changes = each.num_rescales + each.num_preemptions
        return rescale_factor(view.now_s - each.job.arrival_s, changes, self.penalty_s)


class _Speedups:
    """The speedups of jobs, each worked out when an allocation first asks for it."""

    def __init__(self, view: View, jobs: Sequence[ActiveJob], most_gpus: Sequence[int]) -> None:
        self._jobs = jobs
        self._known = np.full((len(jobs), max(most_gpus) + 1, len(view.gpus_per_node) + 1), np.nan)
        self._known[:, 0] = 0.0
        fair = -(-view.capacity // len(jobs))
        self._fair_gpus = [min(fair, each.job.most_gpus) for each in jobs]
        self._fair = [0.0] * len(jobs)
        for place, each in enumerate(jobs):
            estimate = each.trainer.estimate if each.trainer else None
            if estimate is not None:
                self._fill(place, estimate.most(max(fair, most_gpus[place])), fair)
            elif each.first_start_s is not None:
                self._fair[place] = rate(view, each, self._fair_gpus[place])

    def of(self, num_gpus: Ints, num_nodes: Ints) -> Floats:
        """Return the speedups of all jobs in some allocations: numbers of shape (allocations, jobs)."""
        places = np.broadcast_to(np.arange(len(self._jobs)), num_gpus.shape)
        missing = np.isnan(self._known[places, num_gpus, num_nodes])
        for place, gpus, nodes in set(zip(*(a[missing].tolist() for a in (places, num_gpus, num_nodes)), strict=True)):
            self._known[place, gpus, nodes] = self._speedup(place, gpus, nodes)
        found: Floats = self._known[places, num_gpus, num_nodes]
        return found

    def _fill(self, place: int, goodputs: Floats, fair_gpus: int) -> None:
        """Take note of all speedups of a job from its goodputs on one node and on several, by GPUs from 1."""
        known, relative = self._known[place], goodputs / goodputs[0, fair_gpus - 1]
        count = min(len(known) - 1, relative.shape[1])
        known[1 : count + 1, 1] = relative[0, :count]
        known[1 : count + 1, 2:] = relative[1, :count, None]

    def _speedup(self, place: int, num_gpus: int, num_nodes: int) -> float:
        each = self._jobs[place]
        if each.first_start_s is None:
            return num_gpus / self._fair_gpus[place]
        return each.job.work_per_s(num_gpus, num_nodes) / self._fair[place]


def _placement(row: Ints) -> Placement | None:
    """Return the nodes of a row; None without GPUs."""
    return tuple((int(node), int(row[node])) for node in np.flatnonzero(row)) or None
