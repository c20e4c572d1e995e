"""Stretches: ops in a row that run as one event for as long as nobody else uses their resources.

An op on a resource that some other op may use needs an event for its latency and one for its end, as its speed may
change. Mostly it does not: a rank computes for itself, and beside its exchanges only now and then. So ops of which each
waits for the one before alone, and whose resources nobody uses now, are timed at once. Another activity that begins on
one of these resources interrupts the stretch: ops that are over stay as they are, the one under way goes on by itself,
and later ones have not begun. Times are those of single events, to the last bit, as long as ops run alone.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sim.engine.compiling.graph import Graph, NodeKind
from sim.engine.prices.activity import Activity
from sim.engine.running.sharing import Hold, SharedResources, Supplies, Supply

_FIXED, _SHARED = int(NodeKind.FIXED), int(NodeKind.SHARED)

MOST: Final = 64
"""Ops of a stretch: one that is soon interrupted has been timed in vain."""


@dataclass(slots=True, eq=False)
class Stretch:
    """Ops in a row from ``nodes[0]`` on, which begins at ``begin_s``.

    Op k uses its resources from ``used_from_s[k]`` to ``ends_s[k]``, and the next one begins. ``hold``: of the
    resources. ``is_interrupted``: not all ops ran in it.
    """

    nodes: list[int]
    begin_s: float
    used_from_s: list[float]
    ends_s: list[float]
    hold: Hold | None = None
    is_interrupted: bool = False

    def note(self, count: int, starts_s: list[float], ends_s: list[float]) -> None:
        """Note the times of the first ops, and the start of the op after them."""
        begin_s = self.begin_s
        for node, end_s in zip(self.nodes[:count], self.ends_s, strict=False):
            starts_s[node], ends_s[node] = begin_s, end_s
            begin_s = end_s
        if count < len(self.nodes):
            starts_s[self.nodes[count]] = begin_s

    def num_over(self, now_s: float) -> int:
        """Return how many ops are over."""
        return bisect_right(self.ends_s, now_s)


@dataclass(slots=True)
class Stretches:
    """The stretches of a graph. ``waits``: what each node still waits for."""

    graph: Graph
    waits: list[int]
    resources: SharedResources
    _known: dict[int, tuple[Supplies, float]] = field(default_factory=dict)
    _alike: dict[Supplies, Supplies] = field(default_factory=dict)

    def begin(self, node: int, now_s: float, interrupted: Callable[[Stretch], None]) -> Stretch | None:
        """Return the ops in a row that begin with a node, their resources held; None where they are fewer than two.

        ``interrupted`` is called with a stretch when another activity begins on its resources.
        """
        graph, waits, known = self.graph, self.waits, self._known
        kinds, durations, successors, shared = graph.kinds, graph.durations_s, graph.successors, graph.shared
        found = Stretch([], now_s, [], [])
        nodes, used_from_s, ends_s = found.nodes, found.used_from_s, found.ends_s
        moment_s, held = now_s, dict[Supply, None]()
        needs: Supplies | None = None
        while len(nodes) < MOST:
            moment_s += durations[node]
            if kinds[node] == _FIXED:
                used_from_s.append(moment_s)
            elif kinds[node] == _SHARED:
                activity, before = shared[node], needs
                needs, lasting_s = known.get(id(activity)) or self._find(activity)
                if needs is not before and not _are_free(needs, held):
                    break
                used_from_s.append(moment_s)
                moment_s += lasting_s
            else:
                break
            nodes.append(node)
            ends_s.append(moment_s)
            after = successors[node]
            if len(after) != 1 or waits[after[0]] != 1:
                break
            node = after[0]
        if len(nodes) < 2:
            return None
        found.hold = self.resources.hold(nodes[0], tuple(held), lambda: interrupted(found))
        return found

    def _find(self, activity: Activity) -> tuple[Supplies, float]:
        """Return the resources that an activity of the graph needs for itself in a stretch, and how long it uses them.

        Activities on links are of no stretch, and need none: others begin there too often. Equal needs are one tuple.
        """
        needs = () if activity.uses_links else self.resources.supplies_of(activity.demands)
        found = self._known[id(activity)] = self._alike.setdefault(needs, needs), activity.occupancy_s
        return found


def _are_free(needs: Supplies, held: dict[Supply, None]) -> bool:
    """Return whether nobody uses any of some resources, and add these to those that are held."""
    if not needs or any(supply.users for supply in needs):
        return False
    held.update(dict.fromkeys(needs))
    return True
