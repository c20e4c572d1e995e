"""Max-min fair sharing of resources between activities that run together.

An activity alone spends ``max`` of its demands; at fraction f it takes f·demand/max of each resource. All fractions
rise together; when a resource is full, the activities that use it stay where they are and the others rise on, up to 1
(progressive filling, Bertsekas and Gallager, section 6.5.2). Activities that yield fill afterwards, in the same way,
what the others leave; they may stand still meanwhile.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeVar

from sim.engine.prices.activity import Resource

Demands = tuple[tuple[Resource, float], ...]
_Name = TypeVar("_Name", bound=Resource)

TIE = 1e-12
"""Levels that differ by less than this part of themselves differ by rounding, and are one level."""

SETTLE = -(2**62)
"""The key of the event that finds the speeds anew once the activities of a time have started and ended."""


@dataclass(slots=True, eq=False)
class Supply:
    """A resource: its users by key; and while it fills, what is free of it and the load of those who still rise.

    ``summed`` is the load when it was last added up.
    """

    users: dict[int, "_Flow"] = field(default_factory=dict)
    free: float = 1.0
    load: float = 0.0
    summed: float = 0.0

    def level(self) -> float:
        """Return the fraction at which it is full if all who still rise rise on.

        Adds everything up anew where half of the load has been taken away, lest rounding errors outweigh what is left.
        """
        if self.load < 0.5 * self.summed:
            parts = [(flow, d / flow.single_s) for flow in self.users.values() for s, d in flow.parts if s is self]
            self.free = 1.0 - math.fsum(flow.target * part for flow, part in parts)
            self.load = self.summed = math.fsum(part for flow, part in parts if flow.rises)
        return self.free / self.load if self.load > 0 else math.inf


Supplies = tuple[Supply, ...]


@dataclass(slots=True, eq=False)
class _Flow:
    """An activity: its demands in seconds, how long it (or one that it stands for) lasts alone, what part is left.

    ``target`` is the fraction that a filling has found for it, 0 before; ``rises``: while it is looked for. ``yields``:
    see Activity.
    """

    key: int
    since_s: float
    parts: list[tuple[Supply, float]]
    single_s: float = 0.0
    remaining: float = 1.0
    fraction: float = 0.0
    target: float = 0.0
    rises: bool = False
    version: int = 0
    yields: bool = False


@dataclass(slots=True, eq=False)
class Hold(_Flow):
    """Activities in a row that have resources for themselves, each at its own speed: one user, with a key of its own.

    ``interrupt`` is called when another activity begins on one of the resources, and the hold has let go.
    """

    supplies: Supplies = ()
    interrupt: Callable[[], None] = field(kw_only=True)

    def let_go(self) -> None:
        """Leave the resources to others."""
        for supply in self.supplies:
            del supply.users[self.key]
        self.supplies = ()


def _enter(
    key: int, demands: Demands, supplies: dict[Resource, Supply], now_s: float, single_s: float
) -> tuple[_Flow, float, bool]:
    """Return a new activity among the users of its resources, its largest demand in seconds, and whether others use
    one of its resources.

    Raises ValueError as ``SharedResources.start``.
    """
    flow, occupancy_s, shared = _Flow(key, now_s, []), 0.0, False
    parts = flow.parts
    for r, d in demands:
        if d > occupancy_s:
            occupancy_s = d
        elif not d > 0:
            raise ValueError(f"activity {key} demands {d} s of {r}; leave out what it does not use")
        supply = supplies.get(r)
        if supply is None:
            supply = supplies[r] = Supply()
        elif supply.users:
            shared = True
            if key in supply.users:
                raise ValueError(f"activity {key} names {r} twice; add the demands up")
        supply.users[key] = flow
        parts.append((supply, d))
    if not 0 < occupancy_s < math.inf:
        raise ValueError(f"activity {key} demands {occupancy_s} s in all; it must be more than 0 and finite: {demands}")
    flow.single_s = single_s or occupancy_s
    return flow, occupancy_s, shared


def _go_alone(flow: _Flow, occupancy_s: float) -> float:
    """Let an activity go on as fast as it can without others; return how long it then lasts, in seconds."""
    flow.version = 1
    if occupancy_s <= flow.single_s:
        flow.fraction = 1.0
        return flow.single_s
    flow.fraction = flow.single_s / occupancy_s
    return occupancy_s


def _fill(flows: Sequence[_Flow], supplies: Sequence[Supply]) -> None:
    """Set the target of each flow to its max-min fair fraction. The flows are all users of the supplies."""
    for supply in supplies:
        supply.free = 1.0
    for flow in flows:
        flow.target = 0.0
    yielding = [flow for flow in flows if flow.yields]
    _raise([flow for flow in flows if not flow.yields] if yielding else flows, supplies)
    if yielding:
        for supply in supplies:
            taken = (f.target * d / f.single_s for f in supply.users.values() for s, d in f.parts if s is supply)
            supply.free = max(0.0, 1.0 - math.fsum(taken))
        _raise(yielding, supplies)


def _raise(flows: Sequence[_Flow], supplies: Sequence[Supply]) -> None:
    """Set the target of flows to their max-min fair fractions of what is free.

    The resources fill up in the order of their levels. A level only rises as users stop rising elsewhere; so one
    that has not been renewed in the heap is too low, and goes back when it comes up.
    """
    for supply in supplies:
        supply.load = 0.0
    for flow in flows:
        flow.rises = True
        for supply, d in flow.parts:
            supply.load += d / flow.single_s
    heap = []
    for at, supply in enumerate(supplies):
        supply.summed = supply.load
        if supply.load > supply.free:
            heap.append((supply.free / supply.load, at, supply))
    heapify(heap)
    level = 0.0
    while heap:
        full, lowest = _pop_full(heap)
        level = max(level, lowest)
        if level >= 1.0 - TIE:
            break
        for supply in full:
            for flow in supply.users.values():
                if flow.rises:
                    _stop(flow, level if level > TIE else 0.0)
    for flow in flows:
        if flow.rises:
            flow.target, flow.rises = 1.0, False


def _pop_full(heap: list[tuple[float, int, Supply]]) -> tuple[list[Supply], float]:
    """Take from the heap those resources that fill up first, at the same level; return them and the level."""
    full: list[Supply] = []
    lowest = math.inf
    while heap and heap[0][0] <= lowest * (1.0 + TIE):
        known, at, supply = heappop(heap)
        level = supply.level()
        if level > known:
            heappush(heap, (level, at, supply))
            continue
        full.append(supply)
        lowest = min(lowest, level)
    return full, lowest


def _stop(flow: _Flow, level: float) -> None:
    flow.target, flow.rises = level, False
    for supply, d in flow.parts:
        part = d / flow.single_s
        supply.free -= level * part
        supply.load -= part


def fair_fractions(shares: Sequence[Mapping[_Name, float]]) -> list[float]:
    """Return the max-min fair fraction of its own speed of each of some activities that go on together.

    ``shares``: of each resource, the part of its time that an activity takes at its own speed; more than 0.

    fair_fractions([{"link": 0.9}, {"link": 0.6}, {"other link": 0.5}])     # 2/3, 2/3, 1
    """
    supplies: dict[Resource, Supply] = {}
    flows = [_enter(key, tuple(each.items()), supplies, 0.0, 1.0)[0] for key, each in enumerate(shares)]
    _fill(flows, list(supplies.values()))
    return [flow.target for flow in flows]


@dataclass(slots=True)
class SharedResources:
    """The activities now using shared resources, and when each will be done.

    ``schedule(delay_s, key, version)`` must call ``finish(key, version, now_s)`` after the delay, and calls of one
    time in the order in which they were scheduled; a call with an outdated version is a no-op, as the activity has
    been re-timed since. Keys are more than ``SETTLE``.

    ``spans`` says how fast each went when: key, from, until, and the part of it done per second.

    Only the connected components of activities that share with one that starts or ends are re-timed, once for all
    that start and end together: an event of its own, with key ``SETTLE``, does it. It takes time O(d log d) for the d
    demands of the components.
    """

    schedule: Callable[[float, int, int], None]
    flows: dict[int, _Flow] = field(default_factory=dict)
    supplies: dict[Resource, Supply] = field(default_factory=dict)
    unsettled: list[Supply] = field(default_factory=list)
    spans: list[tuple[int, float, float, float]] = field(default_factory=list)

    def start(self, key: int, demands: Demands, now_s: float, single_s: float = 0.0, *, yields: bool = False) -> None:
        """Begin an activity's use of its resources, each named once.

        ``single_s``: where it stands for several that are alike, how long one of them would last alone; ``yields``: it
        uses what the others leave (see Activity).

        Raises ValueError where there is no demand, one is not more than 0 or not finite, or a resource is named twice.
        """
        flow, occupancy_s, shared = _enter(key, demands, self.supplies, now_s, single_s)
        self.flows[key] = flow
        flow.yields = yields
        if shared:
            self._interrupt(flow)
            self._unsettle([supply for supply, _ in flow.parts])
            return
        self.schedule(_go_alone(flow, occupancy_s), key, 1)

    def supplies_of(self, demands: Demands) -> Supplies:
        """Return the resources of some demands; none where one is not more than 0, which is for ``start`` to refuse."""
        if any(not d > 0 for _, d in demands):
            return ()
        return tuple(self.supplies.setdefault(r, Supply()) for r, _ in demands)

    def hold(self, key: int, supplies: Supplies, interrupt: Callable[[], None]) -> Hold:
        """Take resources that nobody uses for several activities in a row. ``key``: that of the first."""
        hold = Hold(key, 0.0, [], fraction=1.0, supplies=supplies, interrupt=interrupt)
        for supply in supplies:
            supply.users[key] = hold
        return hold

    def resume(self, key: int, demands: Demands, since_s: float, single_s: float, *, yields: bool) -> None:
        """Let an activity go on by itself that began within a hold. The caller finishes it, with version 1."""
        flow, occupancy_s, _ = _enter(key, demands, self.supplies, since_s, single_s)
        self.flows[key] = flow
        flow.yields = yields
        _go_alone(flow, occupancy_s)

    def _interrupt(self, flow: _Flow) -> None:
        """End the holds of resources that an activity uses from now on."""
        for supply, _ in flow.parts:
            for user in tuple(supply.users.values()):
                if isinstance(user, Hold):
                    user.let_go()
                    user.interrupt()

    def finish(self, key: int, version: int, now_s: float) -> bool:
        """End an activity if ``version`` is still current; return whether it ended."""
        if key == SETTLE:
            self._settle(now_s)
            return False
        flow = self.flows.get(key)
        if flow is None or flow.version != version:
            return False
        del self.flows[key]
        self.spans.append((key, flow.since_s, now_s, flow.fraction / flow.single_s))
        shared = False
        for supply, _ in flow.parts:
            users = supply.users
            del users[key]
            if users:
                shared = True
        if shared:
            self._unsettle([supply for supply, _ in flow.parts])
        return True

    def _unsettle(self, supplies: list[Supply]) -> None:
        if not self.unsettled:
            self.schedule(0.0, SETTLE, 0)
        self.unsettled += supplies

    def _settle(self, now_s: float) -> None:
        """Find the speeds of all activities that share, however indirectly, an unsettled resource, and re-time them."""
        flows, supplies = self._component()
        self.unsettled = []
        _fill(flows, supplies)
        for flow in flows:
            if flow.target == flow.fraction:
                continue
            if now_s > flow.since_s:
                self.spans.append((flow.key, flow.since_s, now_s, flow.fraction / flow.single_s))
            flow.remaining -= (now_s - flow.since_s) * flow.fraction / flow.single_s
            flow.since_s, flow.fraction = now_s, flow.target
            flow.version += 1
            if flow.fraction:
                self.schedule(max(flow.remaining, 0.0) * flow.single_s / flow.fraction, flow.key, flow.version)

    def _component(self) -> tuple[list[_Flow], list[Supply]]:
        """Return the users of the unsettled resources and all who share with them, by key; and their resources."""
        supplies = dict.fromkeys(self.unsettled)
        queue, flows = list(supplies), dict[int, _Flow]()
        while queue:
            for key, flow in queue.pop().users.items():
                if key in flows:
                    continue
                flows[key] = flow
                for supply, _ in flow.parts:
                    if supply not in supplies:
                        supplies[supply] = None
                        queue.append(supply)
        return [flows[key] for key in sorted(flows)], list(supplies)
