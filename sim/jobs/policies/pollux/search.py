"""The genetic search of Pollux: allocations as matrices of jobs and nodes, a whole population at a time.

An allocation holds the GPUs of each job on each node: integers of shape (jobs, nodes). A population has shape
(allocations, jobs, nodes). Rules and constants are those of the paper's artifact (github.com/petuum/adaptdl).
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POWER: Final = -1.0
FLOOR: Final = 1e-3
"""Added to every speedup, so that a job without GPUs does not make a mean of 0."""
MUTATED: Final = 0.1
MOST_NODES: Final = 16
"""Nodes of a job."""
PATIENCE: Final = 25
"""Generations without a fitter allocation after which a search ends. The artifact goes through all."""


class Problem(Struct, frozen=True):
    """What allocations are searched for. Jobs are in the order in which they get what several ask for.

    ``held``: shape (jobs, nodes), the present allocation. ``node_gpus``: of every node. ``most_gpus``: of every job.
    ``kept``: the fraction of its speedup that a job keeps if its GPUs change. ``speedup``: from numbers of GPUs and of
    nodes, each of shape (allocations, jobs), to speedups. ``avoids``: no node holds two jobs of several nodes.
    """

    held: Ints
    node_gpus: Ints
    most_gpus: Ints
    kept: Floats
    speedup: Callable[[Ints, Ints], Floats]
    avoids: bool = True


def fitness(problem: Problem, population: Ints) -> Floats:
    """Return the mean of the jobs' speedups to the power of -1, to the power of -1, of every allocation."""
    speedups = problem.speedup(_over_nodes(population), _over_nodes(population > 0))
    changes = _over_nodes(population != problem.held) > 0
    speedups = np.where(changes, problem.kept * speedups, speedups)
    found: Floats = np.mean((speedups + FLOOR) ** POWER, axis=1) ** (1.0 / POWER)
    return found


def evolved(problem: Problem, population: Ints, size: int, generations: int, random: np.random.Generator) -> Ints:
    """Return the fittest allocations, the best first, after at most so many generations.

    Equal allocations are told by a random sum of their numbers.
    """
    population = repaired(problem, population, random)
    scores = fitness(problem, population)
    marks = random.integers(1 << 40, size=population[0].size)
    told = population.reshape(len(population), -1) @ marks
    last_gain = 0
    for generation in range(generations):
        children = repaired(problem, mutated(problem, crossed(population, scores, size, random), random), random)
        population = np.concatenate([population, children])
        scores = np.concatenate([scores, fitness(problem, children)])
        told = np.concatenate([told, children.reshape(len(children), -1) @ marks])
        first = np.sort(np.unique(told, return_index=True)[1])
        best = first[np.argsort(-scores[first], kind="stable")][:size]
        if scores[best[0]] > scores[:size].max():
            last_gain = generation
        population, scores, told = population[best], scores[best], told[best]
        if generation - last_gain >= PATIENCE:
            break
    return population


def crossed(population: Ints, scores: Floats, size: int, random: np.random.Generator) -> Ints:
    """Return children of winners of tournaments: the first jobs of one parent, the others of the other."""
    rivals = random.integers(len(population), size=(2, size, 2))
    winners = np.where(scores[rivals[..., 0]] >= scores[rivals[..., 1]], rivals[..., 0], rivals[..., 1])
    num_jobs = population.shape[1]
    is_first = np.arange(num_jobs)[None, :] < random.integers(1, num_jobs + 1, size=size)[:, None]
    found: Ints = population[winners[0]]
    rows, jobs = np.nonzero(~is_first)
    found[rows, jobs] = population[winners[1][rows], jobs]
    return found


def mutated(problem: Problem, population: Ints, random: np.random.Generator) -> Ints:
    """Return allocations in which some jobs hold what they hold now, lose nodes, or get other GPUs of a node."""
    count, num_jobs, _ = population.shape
    found = population.copy()
    rows, jobs = np.nonzero(random.random((count, num_jobs)) < MUTATED)
    found[rows, jobs] = problem.held[jobs]
    rows, jobs = np.nonzero(random.random((count, num_jobs)) < MUTATED)
    found[rows, jobs] = np.where(random.random((len(rows), found.shape[2])) < MUTATED, 0, found[rows, jobs])
    free = np.maximum(problem.node_gpus - _over_jobs(found), 0)
    grows = random.random((count, num_jobs)) < MUTATED
    rows, jobs = np.nonzero(grows & (free.sum(axis=1) > 0)[:, None])
    if len(rows):
        weights = np.cumsum(free[rows] > 0, axis=1)
        nodes = (weights > (random.random(len(rows)) * weights[:, -1])[:, None]).argmax(axis=1)
        now = found[rows, jobs, nodes]
        found[rows, jobs, nodes] = random.integers(now, np.maximum(problem.node_gpus[nodes], now) + 1)
    return found


def repaired(problem: Problem, population: Ints, random: np.random.Generator) -> Ints:
    """Return allocations that keep the rules: one job of several nodes on a node, few enough GPUs of jobs and nodes.

    What breaks no rule is left as it is. A job that has too much keeps that of its first nodes, in random order.
    """
    found = _uncrowded(population) if problem.avoids else population.copy()
    rows, jobs = np.nonzero((_over_nodes(found) > problem.most_gpus) | (_over_nodes(found > 0) > MOST_NODES))
    found[rows, jobs] = _limited(found[rows, jobs], problem.most_gpus[jobs], random)
    rows, nodes = np.nonzero(_over_jobs(found) > problem.node_gpus)
    taken = np.minimum(np.cumsum(found[rows, :, nodes], axis=1), problem.node_gpus[nodes][:, None])
    found[rows, :, nodes] = np.diff(taken, axis=1, prepend=0)
    return found


def _uncrowded(population: Ints) -> Ints:
    """Return allocations in which each node holds the first job alone of those on several nodes."""
    found, used = population.copy(), population > 0
    spread = used & (_over_nodes(used) > 1)[:, :, None]
    rows, nodes = np.nonzero(_over_jobs(spread) > 1)
    crowding = spread[rows, :, nodes]
    found[rows, :, nodes] = np.where(crowding & (np.cumsum(crowding, axis=1) > 1), 0, found[rows, :, nodes])
    return found


def _limited(held: Ints, most_gpus: Ints, random: np.random.Generator) -> Ints:
    """Return the GPUs of jobs, a row each, on at most as many nodes, and as many of them, as they may have."""
    order = np.argsort(random.random(held.shape), axis=1)
    found = np.take_along_axis(held, order, axis=1)
    found = np.where(np.cumsum(found > 0, axis=1) > MOST_NODES, 0, found)
    found = np.diff(np.minimum(np.cumsum(found, axis=1), most_gpus[:, None]), axis=1, prepend=0)
    kept: Ints = np.take_along_axis(found, np.argsort(order, axis=1), axis=1)
    return kept


def _over_nodes(values: Ints | NDArray[np.bool_]) -> Ints:
    """Return sums over nodes: shape (allocations, jobs). einsum takes a quarter of the time of sum."""
    found: Ints = np.einsum("ajn->aj", values.astype(np.int64, copy=False))
    return found


def _over_jobs(values: Ints | NDArray[np.bool_]) -> Ints:
    """Return sums over jobs: shape (allocations, nodes)."""
    found: Ints = np.einsum("ajn->an", values.astype(np.int64, copy=False))
    return found
