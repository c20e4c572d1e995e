"""The end of a step whose experts have copies: sums over copies; updates wait for these, and for copies on the way."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.moving.load import Mask
from sim.planner.moving.traffic import Beside, Flow, Queued, queue_ends_s

Floats = NDArray[np.float64]
Holders = tuple[int, ...]


class Updates(Struct, frozen=True):
    """What ends a step: seconds of each bucket's update, of an expert's, and the sum of the loss."""

    bucket_s: tuple[float, ...]
    expert_s: float
    loss: Flow


def by_holders(held: Mask) -> dict[Holders, int]:
    """Return how many experts of all layers have these holders, in the order in which they are summed.

    ``held``: [layer, rank, expert].
    """
    columns = held.transpose(0, 2, 1).reshape(-1, held.shape[1])
    packed, first, numbers = np.unique(np.packbits(columns, axis=1), axis=0, return_index=True, return_counts=True)
    del packed
    found = {tuple(np.flatnonzero(columns[at]).tolist()): int(n) for at, n in zip(first, numbers, strict=True)}
    return dict(sorted(found.items()))


class Summed(Struct, frozen=True, eq=False):
    """When sums of gradients are over: of the buckets that all ranks share, and over the holders of experts."""

    buckets_s: tuple[float, ...]
    copies_s: Mapping[Holders, float]


def summed(beside: Beside, copies: Mapping[Holders, Flow], exchanged_s: float) -> Summed:
    """Return when the sums of a step are over, those that ``beside`` has begun and those over ``copies``.

    ``exchanged_s``: when the last exchange is over, after which copies are summed. What they use is added to what
    ``beside`` has been busy with, if it records that.
    """
    rest, num_ranks = beside.rest(), 1 + max((max(holders) for holders in copies), default=0)
    queued = [Queued(flow, (num_ranks,), ready_s) for ready_s, flow in rest]
    queued += [Queued(flow, holders, exchanged_s) for holders, flow in copies.items()]
    found_s = queue_ends_s(queued, beside.busy if beside.records else None).tolist()
    buckets_s = (*beside.ends_s, *found_s[: len(rest)])
    return Summed(buckets_s, dict(zip(copies, found_s[len(rest) :], strict=True)))


def step_end_s(
    computed_s: float, sums: Summed, groups: Mapping[Holders, int], updates: Updates, late_s: Mapping[Holders, Floats]
) -> float:
    """Return when the last rank has updated all that it has.

    ``computed_s``: when the last kernel before the updates is over. ``groups``: the experts by holders. ``late_s``:
    when copies of experts with these holders have been sent and received, by rank.
    """
    now_s = np.full(1 + max(max(holders) for holders in groups), computed_s)
    for ready_s, seconds in zip(sums.buckets_s, updates.bucket_s, strict=True):
        now_s = np.maximum(now_s, ready_s) + seconds
    for holders, number in groups.items():
        here = list(holders)
        ready_s = np.maximum(now_s[here], sums.copies_s.get(holders, 0.0))
        if holders in late_s:
            ready_s = np.maximum(ready_s, late_s[holders][here])
        now_s[here] = ready_s + number * updates.expert_s
    loss_s = max([computed_s, *sums.buckets_s]) + updates.loss.latency_s + updates.loss.seconds
    return max(float(now_s.max()), loss_s)
