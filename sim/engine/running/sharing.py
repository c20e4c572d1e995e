"""Max-min fair sharing of resources between activities that run together.

An activity alone spends ``max`` of its demands; at fraction f it takes f·demand/max of each resource. All fractions
rise together; when a resource is full, the activities that use it stay where they are and the others rise on, up to 1
(progressive filling, Bertsekas and Gallager, section 6.5.2). Activities that yield fill afterwards, in the same way,
what the others leave; they may stand still meanwhile.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from msgspec import Struct

from sim.engine.prices.activity import Resource

Demands = Sequence[tuple[Resource, float]]
_Name = TypeVar("_Name", bound=Resource)

TIE = 1e-12
"""Levels that differ by less than this part of themselves differ by rounding, and are one level."""

SETTLE = -(2**62)
"""The key of the event that finds the speeds anew once the activities of a time have started and ended."""


LATER = -1
"""The version of an activity that has its resources before it begins (see ``SharedResources.begin_later``)."""


class Supply:
    """A resource: its users by key; and while it fills, what is free of it and the load of those who still rise.

    ``summed`` is the load when it was last added up.
    """

    __slots__ = ("free", "load", "summed", "users")

    def __init__(self) -> None:
        self.users: dict[int, Flow] = {}
        self.free, self.load, self.summed = 1.0, 0.0, 0.0

    def level(self) -> float:
        """Return the fraction at which it is full if all who still rise rise on.

        Adds everything up anew where half of the load has been taken away, lest rounding errors outweigh what is left.
        """
        if self.load < 0.5 * self.summed:
            shares = [(flow, share) for flow in self.users.values() for s, share in flow.use.shares if s is self]
            self.free = 1.0 - math.fsum(flow.target * share for flow, share in shares)
            self.load = self.summed = math.fsum(share for flow, share in shares if flow.rises)
        return self.free / self.load if self.load > 0 else math.inf


Supplies = tuple[Supply, ...]


class Use(Struct, eq=False):
    """What an activity uses: the supply of each resource, and which part of it at its own speed (``shares``).

    ``single_s``: how long it, or one that it stands for, lasts alone; ``yields``: see Activity. Without others on its
    resources it lasts ``alone_s`` and goes at ``alone_fraction`` of its speed.
    """

    supplies: Supplies
    shares: tuple[tuple[Supply, float], ...] = ()
    single_s: float = 0.0
    yields: bool = False
    alone_s: float = 0.0
    alone_fraction: float = 1.0


class Flow(Struct, eq=False):
    """An activity among the users of its resources since ``since_s``, and what part of it was left then.

    ``target`` is the fraction that a filling has found for it, 0 before; ``rises``: while it is looked for. One whose
    ``since_s`` is to come has its resources for itself until another begins on one of them: then it leaves them, and is
    handed to ``interrupt``.
    """

    key: int
    since_s: float
    use: Use
    fraction: float = 0.0
    version: int = 0
    interrupt: "Callable[[Flow], None] | None" = None
    remaining: float = 1.0
    target: float = 0.0
    rises: bool = False

    def enter(self) -> bool:
        """Become a user of the resources; return whether there are others."""
        key, has_others = self.key, False
        for supply in self.use.supplies:
            if supply.users:
                has_others = True
            supply.users[key] = self
        return has_others

    def leave(self) -> bool:
        """Leave the resources; return whether there are others."""
        key, has_others = self.key, False
        for supply in self.use.supplies:
            users = supply.users
            del users[key]
            if users:
                has_others = True
        return has_others


def _use(
    key: int, demands: Demands, supplies: dict[Resource, Supply], single_s: float = 0.0, *, yields: bool = False
) -> Use:
    """Return what an activity uses; new resources are added to the supplies. Raises as ``SharedResources.start``."""
    occupancy_s = 0.0
    for r, d in demands:
        if d > occupancy_s:
            occupancy_s = d
        elif not d > 0:
            raise ValueError(f"activity {key} demands {d} s of {r}; leave out what it does not use")
    parts: dict[Supply, float] = {}
    for r, d in demands:
        supply = supplies.setdefault(r, Supply())
        if supply in parts:
            raise ValueError(f"activity {key} names {r} twice; add the demands up")
        parts[supply] = d
    if not 0 < occupancy_s < math.inf:
        raise ValueError(f"activity {key} demands {occupancy_s} s in all; it must be more than 0 and finite: {demands}")
    single_s = single_s or occupancy_s
    fraction = 1.0 if occupancy_s <= single_s else single_s / occupancy_s
    shares = tuple([(supply, d / single_s) for supply, d in parts.items()])
    return Use(tuple(parts), shares, single_s, yields, max(single_s, occupancy_s), fraction)


def are_free(supplies: Supplies) -> bool:
    """Return whether nobody uses any of some resources."""
    for supply in supplies:  # noqa: SIM110 - a generator takes longer than the loop
        if supply.users:
            return False
    return True


def _fill(flows: Sequence[Flow], supplies: Sequence[Supply]) -> None:
    """Set the target of each flow to its max-min fair fraction. The flows are all users of the supplies."""
    if _fill_at_once(flows):
        return
    for supply in supplies:
        supply.free = 1.0
    for flow in flows:
        flow.target = 0.0
    yielding = [flow for flow in flows if flow.use.yields]
    _raise([flow for flow in flows if not flow.use.yields] if yielding else flows, supplies)
    if yielding:
        for supply in supplies:
            taken = (f.target * share for f in supply.users.values() for s, share in f.use.shares if s is supply)
            supply.free = max(0.0, 1.0 - math.fsum(taken))
        _raise(yielding, supplies)


def _fill_at_once(flows: Sequence[Flow]) -> bool:
    """Set the targets of flows whose resources all fill up at one level, as it mostly is; return whether it is so.

    Each of the flows uses one of the resources that fill up first. The numbers are those of ``_raise``.
    """
    loads: dict[Supply, float] = {}
    for flow in flows:
        use = flow.use
        if use.yields:
            return False
        for supply, share in use.shares:
            loads[supply] = loads.get(supply, 0.0) + share
    highest = max(loads.values(), default=0.0)
    level = 1.0 / highest if highest > 1.0 else 1.0
    if level >= 1.0 - TIE:
        level = 1.0
    elif not all(_fills_up(flow, loads, level * (1.0 + TIE)) for flow in flows):
        return False
    for flow in flows:
        flow.target = level if level > TIE else 0.0
    return True


def _fills_up(flow: Flow, loads: Mapping[Supply, float], level: float) -> bool:
    """Return whether a flow uses a resource that is full at a level."""
    for supply, _ in flow.use.shares:  # noqa: SIM110 - a generator takes longer than the loop
        if 1.0 / loads[supply] <= level:
            return True
    return False


def _raise(flows: Sequence[Flow], supplies: Sequence[Supply]) -> None:
    """Set the target of flows to their max-min fair fractions of what is free.

    The resources fill up in the order of their levels. A level only rises as users stop rising elsewhere; so one
    that has not been renewed in the heap is too low, and goes back when it comes up.
    """
    for supply in supplies:
        supply.load = 0.0
    for flow in flows:
        flow.rises = True
        for supply, share in flow.use.shares:
            supply.load += share
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


def _stop(flow: Flow, level: float) -> None:
    flow.target, flow.rises = level, False
    for supply, share in flow.use.shares:
        supply.free -= level * share
        supply.load -= share


def fair_fractions(shares: Sequence[Mapping[_Name, float]]) -> list[float]:
    """Return the max-min fair fraction of its own speed of each of some activities that go on together.

    ``shares``: of each resource, the part of its time that an activity takes at its own speed; more than 0.

    fair_fractions([{"link": 0.9}, {"link": 0.6}, {"other link": 0.5}])     # 2/3, 2/3, 1
    """
    supplies: dict[Resource, Supply] = {}
    uses = [_use(key, tuple(each.items()), supplies, 1.0) for key, each in enumerate(shares)]
    flows = [Flow(key, 0.0, use) for key, use in enumerate(uses)]
    for flow in flows:
        flow.enter()
    _fill(flows, list(supplies.values()))
    return [flow.target for flow in flows]


class SharedResources(Struct, eq=False):
    """The activities now using shared resources, and when each will be done.

    ``schedule(delay_s, key, version)`` must call ``finish(key, version, now_s)`` after the delay, and calls of one
    time in the order in which they were scheduled; a call with an outdated version is a no-op, as the activity has
    been re-timed since. Keys are more than ``SETTLE``.

    ``spans`` says how fast each went when, four numbers after each other: key, from, until, and the part of it done per
    second.

    Only the connected components of activities that share with one that starts or ends are re-timed, once for all
    that start and end together: an event of its own, with key ``SETTLE``, does it. It takes time O(d log d) for the d
    demands of the components.
    """

    schedule: Callable[[float, int, int], None]
    flows: dict[int, Flow] = {}
    supplies: dict[Resource, Supply] = {}
    unsettled: list[Supply] = []
    spans: list[float] = []

    def start(self, key: int, demands: Demands, now_s: float, single_s: float = 0.0, *, yields: bool = False) -> None:
        """Begin an activity's use of its resources, each named once.

        ``single_s``: where it stands for several that are alike, how long one of them would last alone; ``yields``: it
        uses what the others leave (see Activity).

        Raises ValueError where there is no demand, one is not more than 0 or not finite, or a resource is named twice.
        """
        self.begin(key, self.use_of(key, demands, single_s, yields=yields), now_s)

    def use_of(self, key: int, demands: Demands, single_s: float, *, yields: bool) -> Use:
        """Return what activities use that are like one. ``key`` and errors: as in ``start``."""
        return _use(key, demands, self.supplies, single_s, yields=yields)

    def begin(self, key: int, use: Use, now_s: float) -> None:
        """Begin an activity, as ``start`` does."""
        flow, has_others = Flow(key, now_s, use, use.alone_fraction, 1), False
        self.flows[key] = flow
        for supply in use.supplies:  # as ``enter`` does, without a call of it per message
            users = supply.users
            if users:
                has_others = True
            users[key] = flow
        if has_others and self._meets_others(flow):
            flow.fraction, flow.version = 0.0, 0
            self._unsettle(use.supplies)
        else:
            self.schedule(use.alone_s, key, 1)

    def begin_later(self, key: int, use: Use, begin_s: float, interrupt: Callable[[Flow], None]) -> bool:
        """Let an activity begin at a later time, if nobody uses its resources now; return whether it will.

        The caller finishes it with version ``LATER``, or lets it begin again where it is handed to ``interrupt``
        because another one begins before it.
        """
        for supply in use.supplies:
            if supply.users:
                return False
        flow = self.flows[key] = Flow(key, begin_s, use, use.alone_fraction, LATER, interrupt)
        for supply in use.supplies:
            supply.users[key] = flow
        return True

    def supplies_of(self, needs: Iterable[Resource]) -> Supplies:
        """Return the supplies of some resources."""
        return tuple(self.supplies.setdefault(resource, Supply()) for resource in needs)

    def hold(self, key: int, use: Use, interrupt: Callable[[Flow], None]) -> Flow:
        """Take resources that nobody uses for several activities in a row, each at its own speed.

        ``key``: that of the first. The caller lets the resources go, or is interrupted.
        """
        hold = Flow(key, math.inf, use, interrupt=interrupt)
        hold.enter()
        return hold

    def resume(self, key: int, use: Use, since_s: float) -> None:
        """Let an activity go on by itself that began within a hold. The caller finishes it, with version 1."""
        flow = self.flows[key] = Flow(key, since_s, use, use.alone_fraction, 1)
        flow.enter()

    def _meets_others(self, flow: Flow) -> bool:
        """Interrupt those that have resources which an activity uses from now on; return whether some use them too."""
        for supply in flow.use.supplies:
            for user in tuple(supply.users.values()):
                if user.since_s > flow.since_s:
                    assert user.interrupt is not None
                    user.leave()
                    self.flows.pop(user.key, None)
                    user.interrupt(user)
        return any(len(supply.users) > 1 for supply in flow.use.supplies)

    def finish(self, key: int, version: int, now_s: float) -> bool:
        """End an activity if ``version`` is still current; return whether it ended."""
        flow = self.flows.get(key)
        if flow is None or flow.version != version:
            if key == SETTLE:
                self._settle(now_s)
            return False
        del self.flows[key]
        self.spans += (key, flow.since_s, now_s, flow.fraction / flow.use.single_s)
        has_others = False
        for supply in flow.use.supplies:  # as ``leave`` does
            users = supply.users
            del users[key]
            if users:
                has_others = True
        if has_others:
            self._unsettle(flow.use.supplies)
        return True

    def _unsettle(self, supplies: Supplies) -> None:
        if not self.unsettled:
            self.schedule(0.0, SETTLE, 0)
        self.unsettled += supplies

    def _settle(self, now_s: float) -> None:
        """Find the speeds of all activities that share, however indirectly, an unsettled resource, and re-time them."""
        flows, supplies = self._component(now_s)
        self.unsettled = []
        _fill(flows, supplies)
        for flow in flows:
            target, fraction, single_s = flow.target, flow.fraction, flow.use.single_s
            if target == fraction:
                continue
            since_s = flow.since_s
            if now_s > since_s:
                self.spans += (flow.key, since_s, now_s, fraction / single_s)
                flow.remaining -= (now_s - since_s) * fraction / single_s
                flow.since_s = now_s
            flow.fraction = target
            flow.version += 1
            if target:
                self.schedule(max(flow.remaining, 0.0) * single_s / target, flow.key, flow.version)

    def _component(self, now_s: float) -> tuple[list[Flow], list[Supply]]:
        """Return the users of the unsettled resources and all who share with them, by key; and their resources.

        One that begins later shares with nobody.
        """
        supplies = dict.fromkeys(self.unsettled)
        queue, flows = list(supplies), dict[int, Flow]()
        while queue:
            for key, flow in queue.pop().users.items():
                if key in flows or flow.since_s > now_s:
                    continue
                flows[key] = flow
                for supply in flow.use.supplies:
                    if supply not in supplies:
                        supplies[supply] = None
                        queue.append(supply)
        return [flows[key] for key in sorted(flows)], list(supplies)
