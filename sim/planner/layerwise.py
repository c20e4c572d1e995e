"""A strategy for every layer: the fastest choices that fit, by dynamic programming over layers and memory."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.prices import Floats
from sim.planner.space import Ints


class Chosen(Struct, frozen=True):
    """The strategy of every layer, and the seconds of all of them with their changes."""

    strategies: tuple[int, ...]
    time_s: float


def fastest_choices(time_s: Floats, memory: Ints, room: int, change_s: Floats | None = None) -> Chosen | None:
    """Return the fastest strategies of layers that fit together, None where none do.

    ``time_s``, ``memory``: of every layer under every strategy, of shape (layers, strategies); memory in whole units.
    ``change_s``: from the strategy of a layer to that of the next, of shape (strategies, strategies); None: nothing.

    C(l, E, S) = min over S' of C(l - 1, E - O(l, S), S') + c(l, S) + R(S', S) (Galvatron, VLDB 2023), for all E at
    once. Exact: the result is that of trying all combinations.
    """
    if room < 0:
        return None
    num_layers, num_strategies = time_s.shape
    least = np.where(np.arange(room + 1) >= memory[0][:, None], time_s[0][:, None], np.inf)
    before: list[NDArray[np.int64]] = []
    for layer in range(1, num_layers):
        reached, came = _before(least, change_s)
        before.append(came)
        least = np.full((num_strategies, room + 1), np.inf)
        for strategy, size in enumerate(memory[layer].tolist()):
            if size <= room:
                least[strategy, size:] = reached[strategy, : room + 1 - size] + time_s[layer, strategy]
    last = int(np.argmin(least[:, room]))
    if not np.isfinite(least[last, room]):
        return None
    return Chosen(_walked_back(last, room, memory, before), float(least[last, room]))


def _before(least: Floats, change_s: Floats | None) -> tuple[Floats, NDArray[np.int64]]:
    """Return the least seconds of the layers before one, by its strategy and memory, and the last strategy of these."""
    if change_s is None:
        came = np.argmin(least, axis=0)
        reached = np.take_along_axis(least, came[None], axis=0)[0]
        return np.broadcast_to(reached, least.shape), np.broadcast_to(came, least.shape)
    changed = least[:, None, :] + change_s[:, :, None]
    came = np.argmin(changed, axis=0)
    return np.take_along_axis(changed, came[None], axis=0)[0], came


def _walked_back(last: int, room: int, memory: Ints, before: list[NDArray[np.int64]]) -> tuple[int, ...]:
    """Return the strategies that led to the last layer's."""
    strategies, left = [last], room
    for layer in range(len(before), 0, -1):
        left -= int(memory[layer, strategies[-1]])
        strategies.append(int(before[layer - 1][strategies[-1], left]))
    return tuple(reversed(strategies))


def even_partition(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers of every stage, as equal as they can be, the earlier ones fuller."""
    least, more = divmod(num_layers, num_stages)
    return tuple(least + (stage < more) for stage in range(num_stages))


def balanced_partition(costs: Floats) -> tuple[int, ...]:
    """Return the layers of every stage under which the costliest stage costs least; every stage has one or more.

    ``costs``: of every layer in every stage, of shape (stages, layers); what a stage has beside layers is part of the
    first or the last layer's.
    """
    num_stages, num_layers = costs.shape
    sums = np.concatenate([np.zeros((num_stages, 1)), np.cumsum(costs, axis=1)], axis=1)
    least = np.full(num_layers + 1, np.inf)
    least[0] = 0.0
    begins: list[Ints] = []
    fills = np.arange(num_layers + 1)[None, :] > np.arange(num_layers + 1)[:, None]
    for stage in range(num_stages):
        slowest = np.maximum(least[:, None], sums[stage][None, :] - sums[stage][:, None])
        slowest = np.where(fills, slowest, np.inf)
        begins.append(np.argmin(slowest, axis=0))
        least = slowest.min(axis=0)
    ends = [num_layers]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return tuple(int(n) for n in np.diff(ends[::-1]))
