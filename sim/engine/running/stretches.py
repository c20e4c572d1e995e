"""Stretches: ops in a row that run as one event for as long as nobody else uses their resources.

An op on a resource that some other op may use needs an event for its latency and one for its end, as its speed may
change. Mostly it does not: a rank computes for itself, and beside its exchanges only now and then. So ops of which each
waits for the one before alone, and whose resources nobody uses now, are timed at once. Another activity that begins on
one of these resources interrupts the stretch: ops that are over stay as they are, the one under way goes on by itself,
and later ones have not begun. Times are those of single events, to the last bit, as long as ops run alone.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, chain
from typing import Final, NamedTuple

from msgspec import Struct

from sim.engine.compiling.graph import Graph
from sim.engine.running.rows import Rows
from sim.engine.running.sharing import Flow, SharedResources, Supplies, Use, are_free

MOST: Final = 64
"""Ops of a stretch: one that is soon interrupted has been timed in vain."""


class Stretch(Struct, eq=False):
    """Ops whose nodes are those of ``rows``, one after the other.

    ``moments_s``: of each row when its first op begins; then when each op begins to use its resources, and when it ends
    and the next one begins. ``hold``: of the resources, none once interrupted. ``is_interrupted``: not all ops ran
    in it.
    """

    rows: list[range] = []
    moments_s: list[list[float]] = []
    hold: Flow | None = None
    is_interrupted: bool = False

    @property
    def end_s(self) -> float:
        """Return when the last op is over."""
        return self.moments_s[-1][-1]

    @property
    def last_node(self) -> int:
        """Return the node of the last op."""
        return self.rows[-1][-1]

    def note(self, starts_s: list[float], ends_s: list[float]) -> None:
        """Note the times of all ops."""
        for row, moments_s in zip(self.rows, self.moments_s, strict=True):
            starts_s[row.start : row.stop] = moments_s[:-1:2]
            ends_s[row.start : row.stop] = moments_s[2::2]

    def cut(self, now_s: float, starts_s: list[float], ends_s: list[float]) -> "UnderWay | None":
        """Note the times of the ops that have begun, and return the one that is not over; None: all are."""
        for row, moments_s in zip(self.rows, self.moments_s, strict=True):
            over_s = moments_s[2::2]
            count = bisect_right(over_s, now_s)
            ends_s[row.start : row.start + count] = over_s[:count]
            if count < len(row):
                starts_s[row.start : row.start + count + 1] = moments_s[: 2 * count + 1 : 2]
                return UnderWay(row[count], moments_s[2 * count + 1], over_s[count])
            starts_s[row.start : row.stop] = moments_s[:-1:2]
        return None


class UnderWay(NamedTuple):
    """An op of a stretch that has begun: its node, when it begins to use its resources, and when it would end."""

    node: int
    used_from_s: float
    end_s: float


class Stretches:
    """The stretches of a graph, of whose nodes each still waits for so many (``waits``)."""

    def __init__(self, graph: Graph, waits: list[int], resources: SharedResources, rows: Rows) -> None:
        self.graph, self.waits, self.resources, self.rows = graph, waits, resources, rows
        self._supplies: list[Supplies] = [resources.supplies_of(needs) for needs in rows.kinds_of_needs]
        self._together: dict[frozenset[int], Use] = {}

    def begin(self, node: int, now_s: float, interrupted: Callable[[Stretch], None]) -> Stretch | None:
        """Return the ops in a row that begin with a node, their resources held; None where they are fewer than two.

        ``interrupted`` is called with a stretch when another activity begins on its resources.
        """
        stop, held = self._free_until(node, MOST)
        if stop == node:
            return None
        parts_s, successors, waits = self.rows.parts_s, self.graph.successors, self.waits
        found, first, room = Stretch(), node, MOST
        while True:
            moments_s = list(accumulate(parts_s[2 * node : 2 * stop], initial=now_s))
            found.rows.append(range(node, stop))
            found.moments_s.append(moments_s)
            room -= stop - node
            after = successors[stop - 1]
            if not room or len(after) != 1 or waits[after[0]] != 1:
                break
            now_s, node = moments_s[-1], after[0]
            stop, needs = self._free_until(node, room)
            if stop == node:
                break
            held |= needs
        if room > MOST - 2:
            return None
        found.hold = self.resources.hold(first, self._needed(held), lambda _: interrupted(found))
        return found

    def _free_until(self, node: int, room: int) -> tuple[int, frozenset[int]]:
        """Return the first node after those of a node's row whose resources nobody uses, and the needs of those.

        They are at most ``room``.
        """
        needs = self.rows.needs
        stop = min(self.rows.stops[node], node + room)
        if stop == node or not are_free(self._supplies[needs[node]]):
            return node, frozenset()
        numbers = frozenset(needs[node:stop])
        if not are_free(self._needed(numbers).supplies):
            stop = next(at for at in range(node, stop) if not are_free(self._supplies[needs[at]]))
            numbers = frozenset(needs[node:stop])
        return stop, numbers

    def _needed(self, numbers: frozenset[int]) -> Use:
        """Return the resources of several numbers of needs; found once."""
        found = self._together.get(numbers)
        if found is None:
            supplies = dict.fromkeys(chain.from_iterable(self._supplies[number] for number in numbers))
            found = self._together[numbers] = Use(tuple(supplies))
        return found
