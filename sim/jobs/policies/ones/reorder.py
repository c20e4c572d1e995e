"""The slots of an allocation: each job gets neighbouring ones, and few slots change from one job to another.

A dynamic program over the slots used. Exact where there are few jobs: it remembers the set of jobs placed. Otherwise it
remembers the number of jobs placed, and one list of jobs for each cell, as the artifact of ONES does.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.jobs.policies.ones.genome import EMPTY, Allocation, Genome

MOST_EXACT: Final = 8
"""Jobs for which the exact program takes milliseconds."""


def changed_slots(live: Genome, genome: Genome) -> int:
    """Return the number of slots that go from a job to another one."""
    return sum(before != EMPTY and after not in (EMPTY, before) for before, after in zip(live, genome, strict=True))


def reordered(live: Genome, allocation: Allocation) -> Genome:
    """Return a genome of an allocation with neighbouring slots for each job and few changes from the live one."""
    jobs = sorted(allocation)
    if not jobs:
        return (EMPTY,) * len(live)
    sizes = [allocation[job] for job in jobs]
    starts = (_exact if len(jobs) <= MOST_EXACT else _by_number)(_costs(live, jobs, sizes), sizes, len(live))
    packed = [sum(sizes[:place]) for place in range(len(jobs))]
    found = [_genome(jobs, sizes, each, len(live)) for each in (starts, packed)]
    return min(found, key=lambda genome: changed_slots(live, genome))


def _genome(jobs: Sequence[int], sizes: Sequence[int], starts: Sequence[int], length: int) -> Genome:
    slots = [EMPTY] * length
    for job, size, start in zip(jobs, sizes, starts, strict=True):
        slots[start : start + size] = [job] * size
    return tuple(slots)


def _costs(live: Genome, jobs: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return [job, slot]: changes if a job ends before a slot; infinite where it would begin before the first one.

    Of equal ones those cost less that leave jobs where they are.
    """
    slots = np.array(live)
    costs = np.full((len(jobs), len(live) + 1), np.inf)
    for place, (job, size) in enumerate(zip(jobs, sizes, strict=True)):
        moves = (slots != job) / (4.0 * len(live)) + ((slots != EMPTY) & (slots != job))
        summed = np.concatenate([[0.0], np.cumsum(moves)])
        costs[place, size:] = summed[size:] - summed[: len(summed) - size]
    return costs


def _exact(costs: NDArray[np.float64], sizes: Sequence[int], length: int) -> list[int]:
    """Return the first slot of each job at the least cost, over all orders."""
    masks = np.arange(1 << len(sizes))
    best = np.full((length + 1, len(masks)), np.inf)
    last = np.full((length + 1, len(masks)), EMPTY)
    best[0, 0] = 0.0
    having = [masks[(masks >> place) & 1 == 1] for place in range(len(sizes))]
    for end in range(1, length + 1):
        best[end] = best[end - 1]
        for place, size in enumerate(sizes):
            if size <= end:
                found = best[end - size, having[place] ^ (1 << place)] + costs[place, end]
                better = found < best[end, having[place]]
                best[end, having[place][better]] = found[better]
                last[end, having[place][better]] = place
    starts, end, mask = [0] * len(sizes), length, int(masks[-1])
    while mask:
        place = int(last[end, mask])
        if place == EMPTY:
            end -= 1
            continue
        end -= sizes[place]
        starts[place] = end
        mask ^= 1 << place
    return starts


def _by_number(costs: NDArray[np.float64], sizes: Sequence[int], length: int) -> list[int]:
    """Return the first slot of each job; each cell of (slots used, jobs placed) remembers its cheapest list only.

    No list leaves more slots idle than the allocation does in all, so that every list can be completed.
    """
    number, jobs, widths = len(sizes), np.arange(len(sizes)), np.array(sizes)
    idle = length - sum(sizes)
    best = np.full((length + 1, number + 1), np.inf)
    placed = np.zeros((length + 1, number + 1, number), dtype=bool)
    start = np.zeros((length + 1, number + 1, number), dtype=np.int64)
    used = np.zeros((length + 1, number + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for end in range(1, length + 1):
        best[end] = np.where(end - used[end - 1] <= idle, best[end - 1], np.inf)
        placed[end], start[end], used[end] = placed[end - 1], start[end - 1], used[end - 1]
        fitting = jobs[widths <= end]
        before = end - widths[fitting]
        found = best[before, :-1] + costs[fitting, end][:, None]
        found[placed[before, :-1, fitting]] = np.inf
        cheapest = found.argmin(axis=0) if len(fitting) else np.zeros(number, dtype=np.int64)
        better = np.flatnonzero(found[cheapest, np.arange(number)] < best[end, 1:]) if len(fitting) else jobs[:0]
        if len(better):
            chosen, source = fitting[cheapest[better]], before[cheapest[better]]
            best[end, better + 1] = found[cheapest[better], better]
            for table in (placed, start):
                table[end, better + 1] = table[source, better]
            used[end, better + 1] = used[source, better] + widths[chosen]
            placed[end, better + 1, chosen] = True
            start[end, better + 1, chosen] = source
    return [int(each) for each in start[length, number]]
