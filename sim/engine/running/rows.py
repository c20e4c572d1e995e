"""Rows: nodes of a graph of which each is the only one to wait for the one before it, and waits for nothing else.

A call's ops are nodes in a row, so most rows are runs of numbers. They are found once, for all nodes together.
"""

from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import Graph, NodeKind
from sim.engine.prices.activity import Activity, Resource

_FIXED, _SHARED = int(NodeKind.FIXED), int(NodeKind.SHARED)

Ints = NDArray[np.int64]
Needs = frozenset[Resource]


class Rows(Struct, frozen=True, eq=False):
    """Per node: ``stops``, the first node after the row that begins with it (itself: it is of no row).

    ``needs`` of a node of a row: the number of the resources that it needs, which are ``kinds_of_needs[number]``.
    ``parts_s``: two numbers per node, its latency (all that it lasts, if it needs nothing) and how long it then uses
    its resources alone.
    """

    stops: memoryview
    needs: list[int]
    parts_s: list[float]
    kinds_of_needs: list[Needs]

    @classmethod
    def of(cls, graph: Graph, counts: Ints, after: Ints) -> "Rows":
        """Return the rows of a graph: ops on links are of none, as others begin there too often.

        ``counts``, ``after``: see ``edges``.
        """
        activities = {id(activity): activity for activity in graph.shared}
        numbers: dict[Needs, int] = {}
        number_of = {key: _number(activity, numbers) for key, activity in activities.items()}
        lasting_of = {key: activity.occupancy_s for key, activity in activities.items()}
        needs = list(map(number_of.__getitem__, map(id, graph.shared)))
        parts_s = [0.0] * (2 * len(needs))
        parts_s[::2] = graph.durations_s
        parts_s[1::2] = map(lasting_of.__getitem__, map(id, graph.shared))
        stops = _stops(graph, np.array(needs, dtype=np.int64), counts, after)
        return cls(stops.data, needs, parts_s, list(numbers))


def _number(activity: Activity, numbers: dict[Needs, int]) -> int:
    """Return the number of an activity's resources; -1 where it can be in no row."""
    if activity.uses_links or any(not seconds > 0 for _, seconds in activity.demands):
        return -1
    return numbers.setdefault(frozenset(resource for resource, _ in activity.demands), len(numbers))


def edges(graph: Graph) -> tuple[Ints, Ints]:
    """Return how many nodes wait for each node of a graph, and these nodes, one node's after the other's."""
    counts = np.fromiter(map(len, graph.successors), np.int64, len(graph.successors))
    return counts, np.fromiter(chain.from_iterable(graph.successors), np.int64, int(counts.sum()))


def _stops(graph: Graph, needs: Ints, counts: Ints, after: Ints) -> Ints:
    """Return the first node after each node's row."""
    size = len(graph.kinds)
    kinds, nodes = graph.kinds_of_nodes, np.arange(size)
    lets_go = np.flatnonzero(counts == 1)
    only = np.full(size, -1)
    only[lets_go] = after[(np.cumsum(counts) - counts)[lets_go]]
    fits = (kinds == _FIXED) | (kinds == _SHARED) & (needs >= 0)
    waits_for_one = np.array(graph.waits, dtype=np.int64) == 1
    goes_on = np.zeros(size, dtype=np.bool_)
    goes_on[:-1] = fits[:-1] & (only[:-1] == nodes[1:]) & fits[1:] & waits_for_one[1:]
    lasts = np.minimum.accumulate(np.where(goes_on, size, nodes)[::-1])[::-1]
    return np.where(fits, lasts + 1, nodes)
