"""Gavel (Narayanan et al., OSDI 2020): a linear program shares the time of GPUs of several types fairly.

A job's allocation is the fraction of time that it should spend on each type. The program maximises the least speed of
a job, relative to that on an equal share of every type. Rounds bring the time that each job has had towards its
fractions: the job that is furthest behind on a type comes first. Durations are not known.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from sim.jobs.active import ActiveJob
from sim.jobs.order import Ranking
from sim.jobs.policy import Change, Decision, View

ROUNDING: Final = 1e-9
SMALLEST: Final = 1e-6
"""A fraction of time that counts as none."""
TIE: Final = 1e-6
"""Weight of the mean speed beside the least one, so that no time is left that somebody could use."""

Shares = NDArray[np.float64]
Held = Mapping[tuple[int, str], float]
"""Seconds that a job, by its index, has had on a type."""


def fair_shares(speeds: Shares, gangs: Shares, counts: Shares) -> Shares:
    """Return the fraction of time of each job on each type [jobs, types].

    ``speeds`` [jobs, types] are those on the GPUs that a job asks for; ``gangs`` [jobs]: their number; ``counts``
    [types]: GPUs of each type. Fractions of a job add up to at most 1.
    """
    num_jobs, num_types = speeds.shape
    relative = speeds * gangs[:, None] / (speeds @ counts / num_jobs)[:, None]
    size = num_jobs * num_types
    rows = np.arange(num_jobs)[:, None] * num_types + np.arange(num_types)
    least, whole = np.zeros((num_jobs, size + 1)), np.zeros((num_jobs, size + 1))
    np.put_along_axis(least, rows, -relative, axis=1)
    np.put_along_axis(whole, rows, 1.0, axis=1)
    least[:, size] = 1.0
    used = np.zeros((num_types, size + 1))
    for place in range(num_types):
        used[place, place:size:num_types] = gangs
    found = linprog(
        np.concatenate([-TIE * relative.ravel() / num_jobs, [-1.0]]),
        A_ub=np.vstack([least, whole, used]),
        b_ub=np.concatenate([np.zeros(num_jobs), np.ones(num_jobs), counts]),
        bounds=(0.0, None),
    )
    if found.x is None:
        raise ValueError(f"the linear program of {num_jobs} jobs has no solution: {found.message}")
    return np.asarray(found.x[:size].reshape(num_jobs, num_types))


@dataclass(frozen=True)
class GavelState:
    """The state between decisions. ``since_s``: the last one; ``round_ends_s``: the end of the present round.

    ``held``: time that each job has had on each type.
    """

    since_s: float = 0.0
    round_ends_s: float = 0.0
    held: Held = field(default_factory=dict)


@dataclass(frozen=True)
class Gavel:
    """Jobs are placed anew every ``round_s``; in between, free GPUs go to jobs that wait."""

    round_s: float = 360.0
    name = "gavel"
    watched_gpu_s: tuple[float, ...] = ()
    ranking: Ranking | None = None

    def start(self) -> GavelState:
        """Return the state before the first round."""
        return GavelState()

    def decide(self, state: GavelState, view: View) -> tuple[GavelState, Decision]:
        """Return the time that jobs have had, and the changes of a round or within it."""
        state = self._caught_up(state, view)
        begins = state.round_ends_s <= view.now_s * (1.0 + ROUNDING)
        left = {name: view.num_gpus_of(name) for name in view.gpu_types}
        if begins:
            state = dataclasses.replace(state, round_ends_s=view.now_s + self.round_s)
        else:
            for each in view.running.values():
                left[view.type_of(each)] -= each.num_gpus
        candidates = view.active if begins else view.waiting
        chosen = self._chosen(state, view, candidates, left)
        stops = [
            Change(each, 0, "others are further behind their share")
            for each in candidates if each.is_running and each.index not in chosen
        ]  # fmt: skip
        starts = [
            Change(each, each.job.num_gpus, "furthest behind its share", gpu_type=chosen[each.index])
            for each in candidates
            if each.index in chosen and not (each.is_running and view.type_of(each) == chosen[each.index])
        ]
        return state, Decision([*stops, *starts], state.round_ends_s)

    def _caught_up(self, state: GavelState, view: View) -> GavelState:
        """Return the state with the time that running jobs have had since the last decision."""
        active = {each.index for each in view.active}
        held = {key: seconds for key, seconds in state.held.items() if key[0] in active}
        for index, each in view.running.items():
            key = index, view.type_of(each)
            held[key] = held.get(key, 0.0) + view.now_s - max(state.since_s, each.granted_s)
        return dataclasses.replace(state, since_s=view.now_s, held=held)

    def _chosen(
        self, state: GavelState, view: View, candidates: Sequence[ActiveJob], left: Mapping[str, int]
    ) -> dict[int, str]:
        """Return the type of each candidate that runs: by priority, then whoever still fits."""
        names, free = view.gpu_types, dict(left)
        speeds = np.array([[each.job.speed_on(name) for name in names] for each in view.active])
        gangs = np.array([float(each.job.num_gpus) for each in view.active])
        shares = fair_shares(speeds, gangs, np.array([float(view.num_gpus_of(name)) for name in names]))
        places = {each.index: place for place, each in enumerate(view.active)}
        ranked = []
        for each in candidates:
            for place, name in enumerate(names):
                share = float(shares[places[each.index], place])
                held_s = state.held.get((each.index, name), 0.0)
                had = held_s / max(view.now_s - each.job.arrival_s, ROUNDING)
                priority = 0.0 if share < SMALLEST else share / had if had else math.inf
                ranked.append((-priority, -share, each.index, name, each.job.num_gpus))
        chosen: dict[int, str] = {}
        for *_, index, name, num_gpus in sorted(ranked):
            if index not in chosen and num_gpus <= free[name]:
                chosen[index] = name
                free[name] -= num_gpus
        return chosen
