"""The multiple-choice knapsack, solved exactly: choose one item of every class at least cost within a weight budget."""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING: Final = 1.0 + 1e-9
"""Tolerance between costs and bounds.

They are sums in different orders, so a bound may exceed an equal cost a little.
"""


class Item(NamedTuple):
    """An item: its weight, its cost and its name within its class."""

    weight: int
    cost: float
    name: int


class Solution(NamedTuple):
    """The least cost, and the name of the chosen item of every class."""

    cost: float
    names: tuple[int, ...]


class _Bound(NamedTuple):
    """A lower bound on the cost of some classes as a function of weight: the linear relaxation, by its corners."""

    weights: Floats
    costs: Floats

    def at(self, weight: Ints | int) -> Floats:
        """Return a lower bound on the cost of every choice of at most this weight."""
        return np.asarray(np.interp(weight, self.weights, self.costs))


class Knapsack(Struct, frozen=True):
    """Classes of items without dominated ones, and a budget. ``bounds[i]``: the bound of the classes from i on."""

    classes: Sequence[Sequence[Item]]
    budget: int
    bounds: Sequence[_Bound]

    @classmethod
    def make(cls, classes: Sequence[Sequence[Item]], budget: int) -> "Knapsack":
        """Return the knapsack of classes of one or more items each."""
        kept = [_undominated(items) for items in classes]
        return cls(kept, budget, _bounds(kept))

    @property
    def least_weight(self) -> int:
        """Return the weight of the lightest choice."""
        return sum(items[0].weight for items in self.classes)

    @property
    def bound(self) -> float:
        """Return a lower bound on the cost of all solutions, by the linear relaxation; infinite where none fits."""
        return float(self.bounds[0].at(self.budget)) if self.least_weight <= self.budget else math.inf

    def solve(self, most_cost: float = math.inf, gap: float = 0.0) -> Solution | None:
        """Return the cheapest choice; None where nothing fits, or where every choice costs more than ``most_cost``.

        No cost may be negative. Dynamic programming over classes keeps the (weight, cost) pairs that no other pair
        beats in both. It drops a pair if its cost plus the relaxation of the classes to come exceeds ``most_cost`` or
        the cost of a greedy choice. The work grows with the number of different sums of weights: small where classes
        repeat, exponential at worst.

        With a ``gap`` the cost is at most 1 + gap times the least, and the work is polynomial: of n classes, each keeps
        only the lightest pair of every cost interval, whose length is gap/n times the relaxation's cost.
        """
        greedy = self._greedy()
        if greedy is None:
            return None
        most = min(most_cost, greedy.cost) * ROUNDING
        if self.bound > most:
            return None
        interval = gap * self.bound / max(len(self.classes), 1)
        weights, costs = np.zeros(1, np.int64), np.zeros(1)
        steps: list[tuple[Ints, Ints]] = []
        for items, bound in zip(self.classes, self.bounds[1:], strict=True):
            parents, picks = np.divmod(np.arange(len(weights) * len(items)), len(items))
            sums = weights[parents] + np.array([item.weight for item in items])[picks]
            totals = costs[parents] + np.array([item.cost for item in items])[picks]
            rests = self.budget - sums
            promising = (rests >= bound.weights[0]) & (totals + bound.at(rests) <= most)
            kept = _front(sums, totals, np.flatnonzero(promising), interval)
            weights, costs = sums[kept], totals[kept]
            steps.append((parents[kept], picks[kept]))
        if not len(
            weights
        ):  # what was dropped for what is as light is no more than the gap cheaper than the greedy one
            return greedy if greedy.cost <= most_cost else None
        return Solution(float(costs[-1]), self._trace(steps, len(weights) - 1))

    def _trace(self, steps: Sequence[tuple[Ints, Ints]], index: int) -> tuple[int, ...]:
        """Return the names of the items that lead to a pair; a step holds the parent and the pick of every pair."""
        names = []
        for (parents, picks), items in zip(reversed(steps), reversed(self.classes), strict=True):
            names.append(items[picks[index]].name)
            index = int(parents[index])
        return tuple(reversed(names))

    def _greedy(self) -> Solution | None:
        """Return a greedy choice: from the lightest items, the largest saving per weight first; None if none fits."""
        rest, chosen = self.budget - self.least_weight, [0] * len(self.classes)
        if rest < 0:
            return None
        stopped: set[int] = set()
        for _, index, more, _, to in _edges(self.classes):
            if index in stopped or more > rest:
                stopped.add(index)
                continue
            rest -= more
            chosen[index] = to
        items = [row[at] for row, at in zip(self.classes, chosen, strict=True)]
        return Solution(math.fsum(item.cost for item in items), tuple(item.name for item in items))


def _undominated(items: Sequence[Item]) -> list[Item]:
    """Return the items that no other item dominates, by rising weight and falling cost."""
    kept: list[Item] = []
    for item in sorted(items):
        if not kept or item.cost < kept[-1].cost:
            kept.append(item)
    return kept


def _edges(classes: Sequence[Sequence[Item]]) -> list[tuple[float, int, int, float, int]]:
    """Return the edges of all hulls, steepest first: slope, class, added weight, saved cost, item at the end."""
    return sorted(
        (-saved / more, index, more, saved, to)
        for index, items in enumerate(classes)
        for more, saved, to in _hull(items)
    )


def _hull(items: Sequence[Item]) -> Iterator[tuple[int, float, int]]:
    """Yield the edges of the lower convex hull of undominated items: added weight, saved cost, item at the end."""
    at = 0
    while at < len(items) - 1:
        here = items[at]
        slopes = [(item.cost - here.cost) / (item.weight - here.weight) for item in items[at + 1 :]]
        to = at + 1 + slopes.index(min(slopes))
        yield items[to].weight - here.weight, here.cost - items[to].cost, to
        at = to


def _bounds(classes: Sequence[Sequence[Item]]) -> list[_Bound]:
    """Return the bound of the classes from the i-th on, for every i up to their number."""
    edges = _edges(classes)
    owners = np.array([index for _, index, _, _, _ in edges], np.int64)
    more = np.array([weight for _, _, weight, _, _ in edges], np.float64)
    saved = np.array([cost for _, _, _, cost, _ in edges])
    bounds = []
    for i in range(len(classes) + 1):
        own = owners >= i
        lightest = sum(items[0].weight for items in classes[i:])
        dearest = math.fsum(items[0].cost for items in classes[i:])
        weights = np.cumsum(np.concatenate([[float(lightest)], more[own]]))
        bounds.append(_Bound(weights, np.cumsum(np.concatenate([[dearest], -saved[own]]))))
    return bounds


def _front(weights: Ints, costs: Floats, among: Ints, interval: float) -> Ints:
    """Return the indices of the Pareto-optimal pairs, by rising weight.

    ``interval``: above 0, only the lightest of the pairs in each cost interval of this length is kept.
    """
    order = among[np.lexsort((costs[among], weights[among]))]
    least = np.minimum.accumulate(costs[order])
    front: Ints = order[costs[order] < np.concatenate([[math.inf], least])[: len(order)]]
    if not interval:
        return front
    intervals = np.floor(costs[front] / interval)
    kept: Ints = front[np.concatenate([[math.inf], intervals])[: len(front)] != intervals]
    return kept
