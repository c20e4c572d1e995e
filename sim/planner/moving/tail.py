"""The end of a step whose experts have copies: sums over copies; updates wait for these, and for copies on the way."""

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.moving.load import Mask
from sim.planner.moving.traffic import Busy, Flow, Queued, queue_ends_s

Floats = NDArray[np.float64]
Holders = tuple[int, ...]
_DIGITS: Final = 13
"""Of a second: times that differ by less are taken as equal."""


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


class Waiting(Struct, frozen=True, eq=False):
    """What is not over when the last exchange ends, at ``exchanged_s``: afterwards copies are summed.

    ``computed_s``: when the last kernel before the updates is over. ``ended_s``: sums of buckets of gradients that are
    over; ``begun``: the others, each with when it is ready.
    """

    exchanged_s: float
    computed_s: float
    ended_s: tuple[float, ...]
    begun: tuple[tuple[float, Flow], ...]

    def since_exchanges(self) -> "Waiting":
        """Return the same with times from the end of the last exchange on, up to rounding."""
        since = partial(_since, self.exchanged_s)
        begun = tuple((since(ready_s), flow) for ready_s, flow in self.begun)
        return Waiting(0.0, since(self.computed_s), tuple(map(since, self.ended_s)), begun)

    @property
    def key(self) -> Hashable:
        """Return what is the same where all times and flows are; arrays of links are those of a job's few flows."""
        begun = tuple((ready_s, flow.latency_s, flow.seconds, id(flow.use)) for ready_s, flow in self.begun)
        return self.computed_s, self.ended_s, begun


def _since(begin_s: float, time_s: float) -> float:
    return round(time_s - begin_s, _DIGITS)


def summed(waiting: Waiting, copies: Mapping[Holders, Flow], busy: list[Busy] | None) -> Summed:
    """Return when the sums of a step are over, also those over ``copies``.

    ``busy``: the list to which what they use is added; None: to none.
    """
    num_ranks = 1 + max((max(holders) for holders in copies), default=0)
    queued = [Queued(flow, (num_ranks,), ready_s) for ready_s, flow in waiting.begun]
    queued += [Queued(flow, holders, waiting.exchanged_s) for holders, flow in copies.items()]
    found_s, num = queue_ends_s(queued, busy).tolist(), len(waiting.begun)
    return Summed((*waiting.ended_s, *found_s[:num]), dict(zip(copies, found_s[num:], strict=True)))


def step_end_s(
    computed_s: float, sums: Summed, groups: Mapping[Holders, int], updates: Updates, late_s: Mapping[Holders, Floats]
) -> float:
    """Return when the last rank has updated all that it has.

    ``computed_s``: see ``Waiting``. ``groups``: the experts by holders. ``late_s``:
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
