"""Schedules as genomes, and the operators of ONES (SC 2021) on them.

A genome has a slot per GPU: the index of the job that holds it, or EMPTY. Slots of a node are neighbours. The batch of
a job follows from its number of slots. ``caps``: the GPUs granted to each job that is not done; 0 for one that never
ran.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Final

from sim.jobs.placement import Placement

EMPTY: Final = -1
Genome = tuple[int, ...]
Allocation = Mapping[int, int]
"""GPUs of each job, without their slots."""


def allocation_of(genome: Genome) -> dict[int, int]:
    """Return how many slots each job has."""
    counts = Counter(genome)
    counts.pop(EMPTY, None)
    return dict(counts)


def refreshed(genome: Genome, caps: Mapping[int, int]) -> Genome:
    """Return a genome without jobs that are done; others keep their first slots, up to their caps, and at least one."""
    held = Counter[int]()
    slots = []
    for job in genome:
        keeps = job in caps and held[job] < max(1, caps[job])
        held[job] += keeps
        slots.append(job if keeps else EMPTY)
    return tuple(slots)


def crossed(one: Genome, other: Genome, swaps: Sequence[bool], caps: Mapping[int, int]) -> tuple[Genome, Genome]:
    """Return two children: slot by slot they inherit from one parent each, swapped where ``swaps`` says so.

    A slot stays empty where its job already has its cap in the child.
    """
    pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(one, other, swaps, strict=True)]
    return _capped([first for first, _ in pairs], caps), _capped([second for _, second in pairs], caps)


def _capped(genes: Sequence[int], caps: Mapping[int, int]) -> Genome:
    held = Counter[int]()
    slots = []
    for job in genes:
        fits = job != EMPTY and held[job] < caps.get(job, 0)
        held[job] += fits
        slots.append(job if fits else EMPTY)
    return tuple(slots)


def without(genome: Genome, evicted: Collection[int]) -> Genome:
    """Return a genome without some jobs."""
    return tuple(EMPTY if job in evicted else job for job in genome)


def filled(
    genome: Genome,
    young: Sequence[int],
    ranked: Sequence[int],
    caps: Mapping[int, int],
    limits: Mapping[int, int],
) -> dict[int, int]:
    """Return an allocation of all GPUs, as far as jobs can use them.

    ``young`` jobs that have no slot get one GPU each. The ``ranked`` ones, in order, then grow to their caps, and to
    their limits if GPUs are left.
    """
    held = allocation_of(genome)
    left = len(genome) - sum(held.values())
    for job in young:
        if left and job not in held:
            held[job] = 1
            left -= 1
    for most in (caps, limits):
        for job in ranked:
            if not left:
                return held
            extra = min(left, most[job] - held.get(job, 0))
            if extra > 0:
                held[job] = held.get(job, 0) + extra
                left -= extra
    return held


def placement_of(slots: Sequence[int], gpus_per_node: Sequence[int]) -> Placement:
    """Return the nodes of some slots."""
    ends = list(accumulate(gpus_per_node))
    counts = Counter(bisect_right(ends, slot) for slot in slots)
    return tuple(sorted(counts.items()))


def genome_of(placements: Mapping[int, Placement], gpus_per_node: Sequence[int]) -> Genome:
    """Return the genome of jobs on their nodes: each has neighbouring slots of a node."""
    slots: list[int] = []
    for node, count in enumerate(gpus_per_node):
        held = [job for job, placement in placements.items() for _ in range(dict(placement).get(node, 0))]
        slots += held + [EMPTY] * (count - len(held))
    return tuple(slots)
