"""ONES (Bian et al., SC 2021): an evolutionary search for the schedule with the smallest remaining utilisation.

Each generation takes over the population of the one before. Refreshed, crossed and mutated schedules, all filled, are
ranked by the GPU-seconds that their jobs still need, by a progress drawn for each job. The best one is installed
when every job that it changes has trained for an epoch since its last change. Rules and constants are the artifact's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job
from sim.jobs.order import Ranking
from sim.jobs.policies.ones.evolution import Prospects, evolved
from sim.jobs.policies.ones.genome import EMPTY, Genome, allocation_of, genome_of, placement_of
from sim.jobs.policies.ones.history import History
from sim.jobs.policies.ones.limits import Limit, lowered
from sim.jobs.policies.ones.predictor import Array, features
from sim.jobs.policies.shown import Speeds, measured_speeds
from sim.jobs.policy import Change, Decision, View

MATURE_EPOCHS = 2
"""Epochs between changes of a limit, and before a job is predicted or evicted."""


@dataclass(frozen=True)
class OnesState:
    """The state between generations. ``live``: the installed genome; ``nodes``: GPUs of each node then.

    ``ordered_by``: the live genome by which the population got its slots. ``measured``: speeds by GPUs of each job.
    """

    generation: int
    history: History
    live: Genome = ()
    nodes: tuple[int, ...] = ()
    population: tuple[Genome, ...] = ()
    ordered_by: Genome = ()
    limits: Mapping[int, Limit] = field(default_factory=dict)
    measured: Speeds = field(default_factory=dict)


@dataclass(frozen=True)
class Ones:
    """The policy. ``generation_s``: between generations; ``refit_growth``: of the history, from one fit to the next.

    The artifact fits whenever a job is done, beside the search; a factor of 1 does so here, and takes long. ``past``:
    jobs whose epochs the history begins with. ``draws``: whether the progress of a job is drawn in each generation, or
    its mean rest is taken. ``remembers``: whether limits change every two epochs at most; the artifact forgets the
    epoch of the last change, so that there they change as soon as a job holds what it may, from two epochs on.
    """

    seed: int = 0
    generation_s: float = 1.0
    population_size: int = 16
    refit_growth: float = 1.25
    past: Sequence[Job] = ()
    draws: bool = True
    remembers: bool = True
    name = "ones"
    watched_gpu_s: tuple[float, ...] = ()
    ranking: Ranking | None = None

    def start(self) -> OnesState:
        """Return an empty population and a network that knows the past jobs alone."""
        return OnesState(0, History.of(self.past, self._random(0, "network")))

    def decide(self, state: OnesState, view: View) -> tuple[OnesState, Decision]:
        """Return the state after a generation, and the changes that install its best schedule."""
        state = self._caught_up(state, view)
        prospects = self._prospects(state, view)
        random = self._random(state.generation, "search")
        live, same = state.live, state.live == state.ordered_by
        population = evolved(state.population, live, prospects, self.population_size, random, same_live=same)
        state = dataclasses.replace(state, population=population, ordered_by=live, generation=state.generation + 1)
        state, changes = installed(state, view)
        return state, Decision(changes, view.now_s + self.generation_s)

    def _random(self, generation: int, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, generation, len(name), *name.encode()])

    def _caught_up(self, state: OnesState, view: View) -> OnesState:
        """Return the state after arrivals, finishes, measured speeds and new limits."""
        active = {each.index: each for each in view.active}
        history = state.history.caught_up(view.active, self.refit_growth, lambda rows: self._random(rows, "fit"))
        limits = {index: state.limits.get(index, Limit()) for index in active}
        nodes, population = tuple(view.gpus_per_node), state.population
        live = tuple(index if index in view.running else EMPTY for index in state.live)
        if nodes != state.nodes:
            live = genome_of({index: each.placement for index, each in view.running.items()}, nodes)
            population = ()
        return dataclasses.replace(
            state,
            history=history,
            measured=measured_speeds(state.measured, view),
            limits=_changed_limits(limits, view, remembered=self.remembers),
            live=live,
            nodes=nodes,
            population=population,
        )

    def _prospects(self, state: OnesState, view: View) -> Prospects:
        """Return what the search needs to know of each job; the progress of mature ones is drawn."""
        now_s = view.now_s
        mature = [each for each in view.active if each.epochs(now_s) >= MATURE_EPOCHS and state.measured[each.index]]
        rests = self._rests(state, mature, now_s) if mature else {}
        return Prospects(
            caps={index: limit.granted for index, limit in state.limits.items()},
            limits={each.index: min(state.limits[each.index].most, each.job.most_gpus) for each in view.active},
            young=[each.index for each in view.active if each.index not in rests],
            rests=rests,
            measured=state.measured,
        )

    def _rests(self, state: OnesState, mature: Sequence[ActiveJob], now_s: float) -> dict[int, float]:
        """Return the samples that jobs have left: by a drawn progress, or beta epochs, about the mean."""
        rows: Array = np.array([features(each.job, each.epochs(now_s)) for each in mature])
        beta = state.history.network.beta(rows)
        if self.draws:
            progress = self._random(state.generation, "progress").beta(rows[:, 2], beta).clip(1e-6, 1.0)
            rests = np.array([each.done(now_s) for each in mature]) * (1.0 / progress - 1.0)
        else:
            rests = beta * np.exp(rows[:, 0])
        return {each.index: rest for each, rest in zip(mature, rests.tolist(), strict=True)}


def _changed_limits(limits: Mapping[int, Limit], view: View, *, remembered: bool) -> Mapping[int, Limit]:
    """Return the limits: running jobs grow every two epochs; the largest shrinks if it holds half of the cluster.

    ``remembered``: the epochs count from the last change of the limit; else from the first one of the job.
    """
    found = dict(limits)
    ripe = [
        each
        for each in view.running.values()
        if int(each.epochs(view.now_s)) - remembered * found[each.index].scaled_epoch >= MATURE_EPOCHS
    ]
    for each in ripe:
        usable = min(view.capacity, each.job.most_gpus)
        epoch = int(each.epochs(view.now_s))
        found[each.index] = found[each.index].raised(each.num_gpus, each.job.num_gpus, usable, epoch)
    largest = max(ripe, key=lambda each: (each.num_gpus, -each.index), default=None)
    if largest is not None and 2 * largest.num_gpus >= view.capacity:
        runtimes_s = [each.held_s(view.now_s) for each in view.active if each.first_start_s is not None]
        found[largest.index] = lowered(
            found[largest.index],
            largest.num_gpus,
            largest.held_s(view.now_s),
            runtimes_s,
            int(largest.epochs(view.now_s)),
        )
    return found


def installed(state: OnesState, view: View) -> tuple[OnesState, Sequence[Change]]:
    """Return the state and the changes by which the best genome takes the place of the live one, as far as it may."""
    best, live, now_s = state.population[0], state.live, view.now_s
    jobs = {each.index: each for each in view.active}
    slots = {job: [slot for slot, held in enumerate(best) if held == job] for job in allocation_of(best)}
    starts = [job for job in slots if job not in view.running and all(live[slot] == EMPTY for slot in slots[job])]
    moved = [job for job in slots if job in view.running and any(live[slot] != job for slot in slots[job])]
    moved += [job for job in slots if job in view.running and job not in moved and live.count(job) != len(slots[job])]
    stopped = [job for job in view.running if job not in slots]
    blocked = any(_is_fresh(jobs[job], state.limits[job], now_s) for job in (*moved, *stopped))
    entering = starts if blocked else [job for job in slots if job not in view.running]
    leaving = [] if blocked else stopped
    moved = [] if blocked else moved
    limits = dict(state.limits)
    for job in (*entering, *moved):
        epoch = int(jobs[job].epochs(now_s))
        limits[job] = replace(limits[job], granted=max(limits[job].granted, len(slots[job])), placed_epoch=epoch)
    for job in leaving:
        limits[job] = replace(limits[job], granted=limits[job].most)
    if entering or moved or leaving:
        for each in view.waiting:
            if not blocked and each.index not in slots and each.first_start_s is not None:
                limits[each.index] = limits[each.index].waited()
    after = best if not blocked else tuple(
        job if job in starts else held for job, held in zip(best, live, strict=True)
    )  # fmt: skip
    changes = [Change(jobs[job], 0, "others have less left to do") for job in leaving]
    changes += [
        Change(jobs[job], len(slots[job]), why, placement_of(slots[job], view.gpus_per_node))
        for why, those in (("least remaining utilisation", entering), ("other GPUs in the best schedule", moved))
        for job in those
    ]
    return dataclasses.replace(state, live=after, limits=limits), changes


def _is_fresh(each: ActiveJob, limit: Limit, now_s: float) -> bool:
    """Return whether a running job has trained for less than an epoch since it got its slots."""
    return int(each.epochs(now_s)) <= limit.placed_epoch
