"""The multiple-choice knapsack, solved exactly: one item of every class, least cost, weights within a budget."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING: Final = 1.0 + 1e-9
"""Bounds are summed in another order than costs; what exceeds a cost by no more than this factor may equal it."""


class Item(NamedTuple):
    """Something to choose: its weight, its cost, and what its class calls it."""

    weight: int
    cost: float
    name: int


class Solution(NamedTuple):
    """The least cost, and the name of the item chosen of every class."""

    cost: float
    names: tuple[int, ...]


class _Bound(NamedTuple):
    """The least cost of some classes by their weight, items mixed in fractions: the corners of a falling line."""

    weights: Floats
    costs: Floats

    def at(self, weight: Ints | int) -> Floats:
        """Return the cost that no choice of this weight or less beats."""
        return np.asarray(np.interp(weight, self.weights, self.costs))


@dataclass(frozen=True, slots=True)
class Knapsack:
    """Classes of items, dominated ones left out, and a budget. ``bounds[i]``: of the classes from i on."""

    classes: Sequence[Sequence[Item]]
    budget: int
    bounds: Sequence[_Bound]

    @classmethod
    def make(cls, classes: Sequence[Sequence[Item]], budget: int) -> "Knapsack":
        """Return the knapsack of classes of one or more items each."""
        kept = [_undominated(items) for items in classes]
        return cls(kept, budget, [_bound(kept[i:]) for i in range(len(kept) + 1)])

    @property
    def least_weight(self) -> int:
        """Return the weight of the lightest items."""
        return sum(items[0].weight for items in self.classes)

    @property
    def bound(self) -> float:
        """Return a cost that no solution beats: that of the linear relaxation; infinite where nothing fits."""
        return float(self.bounds[0].at(self.budget)) if self.least_weight <= self.budget else math.inf

    def solve(self, most_cost: float = math.inf) -> Solution | None:
        """Return the cheapest choice, the lightest of equals; None where nothing fits or all cost more than a limit.

        Dynamic programming over classes keeps the pairs (weight, cost) of which none is beaten in both. A pair is
        dropped that costs, with the relaxation of the classes to come, more than the limit or a greedy choice. The
        work grows with the number of different sums of weights: small where classes repeat, exponential at worst.
        """
        if self.least_weight > self.budget:
            return None
        most_cost = min(most_cost, self._greedy_cost()) * ROUNDING
        if self.bound > most_cost:
            return None
        weights, costs = np.zeros(1, np.int64), np.zeros(1)
        steps: list[tuple[Ints, Ints]] = []
        for items, bound in zip(self.classes, self.bounds[1:], strict=True):
            parents, picks = np.divmod(np.arange(len(weights) * len(items)), len(items))
            sums = weights[parents] + np.array([item.weight for item in items])[picks]
            totals = costs[parents] + np.array([item.cost for item in items])[picks]
            rests = self.budget - sums
            promising = (rests >= bound.weights[0]) & (totals + bound.at(rests) <= most_cost)
            kept = _front(sums, totals, np.flatnonzero(promising))
            weights, costs = sums[kept], totals[kept]
            steps.append((parents[kept], picks[kept]))
        if not len(weights):
            return None
        index, names = len(weights) - 1, []
        for (parents, picks), items in zip(reversed(steps), reversed(self.classes), strict=True):
            names.append(items[picks[index]].name)
            index = int(parents[index])
        return Solution(float(costs[-1]), tuple(reversed(names)))

    def _greedy_cost(self) -> float:
        """Return the cost of a choice: from the lightest items, what saves most per weight, where it fits."""
        rest, cost = self.budget - self.least_weight, math.fsum(items[0].cost for items in self.classes)
        stopped: set[int] = set()
        for _, index, more, saved in _edges(self.classes):
            if index in stopped or more > rest:
                stopped.add(index)
                continue
            rest -= more
            cost -= saved
        return cost


def _undominated(items: Sequence[Item]) -> list[Item]:
    """Return the items by rising weight and falling cost."""
    kept: list[Item] = []
    for item in sorted(items):
        if not kept or item.cost < kept[-1].cost:
            kept.append(item)
    return kept


def _edges(classes: Sequence[Sequence[Item]]) -> list[tuple[float, int, int, float]]:
    """Return the edges of all classes' convex hulls, steepest first: slope, class, more weight, saved cost."""
    return sorted(
        (-saved / more, index, more, saved) for index, items in enumerate(classes) for more, saved in _hull(items)
    )


def _hull(items: Sequence[Item]) -> Iterator[tuple[int, float]]:
    """Yield the edges of the lower convex hull of undominated items: more weight, saved cost."""
    at = 0
    while at < len(items) - 1:
        here = items[at]
        slopes = [(item.cost - here.cost) / (item.weight - here.weight) for item in items[at + 1 :]]
        to = at + 1 + slopes.index(min(slopes))
        yield items[to].weight - here.weight, here.cost - items[to].cost
        at = to


def _bound(classes: Sequence[Sequence[Item]]) -> _Bound:
    edges = _edges(classes)
    lightest = sum(items[0].weight for items in classes)
    dearest = math.fsum(items[0].cost for items in classes)
    weights = accumulate((more for _, _, more, _ in edges), initial=lightest)
    costs = accumulate((-saved for _, _, _, saved in edges), initial=dearest)
    return _Bound(np.array(list(weights), np.float64), np.array(list(costs)))


def _front(weights: Ints, costs: Floats, among: Ints) -> Ints:
    """Return which of some pairs are beaten by no other, by rising weight and falling cost."""
    order = among[np.lexsort((costs[among], weights[among]))]
    least = np.minimum.accumulate(costs[order])
    return order[costs[order] < np.concatenate([[math.inf], least])[: len(order)]]
