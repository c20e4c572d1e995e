"""One generation of the search of ONES (SC 2021): refreshed, crossed and mutated genomes; the best ones are kept."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from sim.jobs.policies.ones.genome import EMPTY, Allocation, Genome, allocation_of, crossed, filled, refreshed, without
from sim.jobs.policies.ones.reorder import reordered
from sim.jobs.speed.speed import interpolated

SWAP_CHANCE = 0.5
EVICTION_CHANCE = 0.3


class Prospects(Struct, frozen=True, kw_only=True):
    """The facts of each unfinished job that the search needs.

    ``caps``: GPUs granted; ``limits``: GPUs it may grow to; ``young``: jobs without a prediction, in order of arrival;
    ``rests``: predicted samples left of the others; ``measured``: samples per second by number of GPUs.
    """

    caps: Mapping[int, int]
    limits: Mapping[int, int]
    young: Sequence[int]
    rests: Mapping[int, float]
    measured: Mapping[int, Mapping[int, float]]

    def ranked(self) -> list[int]:
        """Return the predicted jobs, those with the least remaining time on one GPU first."""
        return sorted(self.rests, key=lambda job: (self.rests[job] / interpolated(self.measured[job], 1), job))

    def utilisation_gpu_s(self, job: int, num_gpus: int) -> float:
        """Return the GPU-seconds that a job still needs on a number of GPUs; 0 if it is not predicted."""
        if job not in self.rests:
            return 0.0
        return num_gpus * self.rests[job] / interpolated(self.measured[job], num_gpus)


def score_gpu_s(allocation: Allocation, prospects: Prospects) -> float:
    """Return the remaining utilisation of an allocation: the GPU-seconds that its jobs still need."""
    return sum(prospects.utilisation_gpu_s(job, num_gpus) for job, num_gpus in allocation.items())


def evolved(
    population: Sequence[Genome],
    live: Genome,
    prospects: Prospects,
    size: int,
    random: np.random.Generator,
    *,
    same_live: bool = False,
) -> tuple[Genome, ...]:
    """Return the next population, best first.

    The score depends on the number of slots of each job alone. So only what is kept gets its slots. ``same_live``: the
    population got its slots by the same live genome, so that those of an equal allocation are known.
    """
    parents = [refreshed(genome, prospects.caps) for genome in population or [(EMPTY,) * len(live)] * size]
    candidates = list(parents)
    for _ in range(size // 2):
        one, other = random.integers(0, len(parents), 2)
        swaps = (random.random(len(live)) < SWAP_CHANCE).tolist()
        candidates += crossed(parents[one], parents[other], swaps, prospects.caps)
    candidates += [without(genome, _evicted(genome, prospects, random)) for genome in parents]
    ranked = prospects.ranked()
    allocations = [filled(each, prospects.young, ranked, prospects.caps, prospects.limits) for each in candidates]
    scores: dict[frozenset[tuple[int, int]], float] = {}
    keys = [frozenset(allocation.items()) for allocation in allocations]
    for key, allocation in zip(keys, allocations, strict=True):
        if key not in scores:
            scores[key] = score_gpu_s(allocation, prospects)
    kept = sorted(range(len(keys)), key=lambda place: scores[keys[place]])[:size]
    found = {frozenset(allocation_of(genome).items()): genome for genome in population if same_live}
    for place in kept:
        if keys[place] not in found:
            found[keys[place]] = reordered(live, allocations[place])
    return tuple(found[keys[place]] for place in kept)


def _evicted(genome: Genome, prospects: Prospects, random: np.random.Generator) -> set[int]:
    """Return the jobs that a mutation stops; young ones stay."""
    jobs = sorted(set(genome) - {EMPTY})
    draws = random.random(len(jobs)).tolist()
    return {job for job, draw in zip(jobs, draws, strict=True) if draw < EVICTION_CHANCE and job in prospects.rests}
