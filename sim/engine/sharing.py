"""Max-min fair sharing of resources between activities that run together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.engine.activity import Resource

Demands = tuple[tuple[Resource, float], ...]


def fair_fractions(demands: Sequence[Demands]) -> list[float]:
    """Return each activity's speed as a fraction of its speed alone, max-min fair.

    An activity alone spends ``max`` of its demands; at fraction f it takes f·demand/max of each resource.
    All fractions rise together; when a resource is full, the activities that use it stay where they
    are and the others rise on, up to 1 (progressive filling, Bertsekas and Gallager, section 6.5.2).
    """
    shares = [{r: d / max(x for _, x in demand) for r, d in demand if d > 0} for demand in demands]
    fractions = [0.0] * len(demands)
    free: dict[Resource, float] = {r: 1.0 for share in shares for r in share}
    rising = set(range(len(demands)))
    while rising:
        load: dict[Resource, float] = dict.fromkeys(free, 0.0)
        for i in sorted(rising):
            for r, part in shares[i].items():
                load[r] += part
        step = min(1.0 - fractions[i] for i in rising)
        step = min([step, *(free[r] / used for r, used in load.items() if used > 0)])
        for i in rising:
            fractions[i] += step
        for r, used in load.items():
            free[r] -= step * used
        full = {r for r, used in load.items() if used > 0 and free[r] <= 1e-12}
        rising = {i for i in rising if fractions[i] < 1.0 - 1e-12 and full.isdisjoint(shares[i])}
    return fractions


@dataclass(slots=True)
class _Flow:
    demands: Demands
    occupancy_s: float
    remaining: float = 1.0
    fraction: float = 0.0
    since_s: float = 0.0
    version: int = 0


@dataclass(slots=True)
class SharedResources:
    """The activities now using shared resources, and when each will be done.

    ``schedule(delay_s, key, version)`` must call ``finish(key, version, now_s)`` after the delay; a call with an
    outdated version is a no-op, as the activity has been re-timed since. Only the connected component of
    activities that share with one that starts or ends is re-timed.
    """

    schedule: Callable[[float, int, int], None]
    flows: dict[int, _Flow] = field(default_factory=dict)
    users: dict[Resource, dict[int, None]] = field(default_factory=dict)

    def start(self, key: int, demands: Demands, now_s: float) -> None:
        """Begin an activity's use of its resources; its demands must all be more than 0."""
        alone, occupancy_s, users = True, 0.0, self.users
        for r, d in demands:
            if d > occupancy_s:
                occupancy_s = d
            if r not in users:
                users[r] = {key: None}
            else:
                alone = alone and not users[r]
                users[r][key] = None
        self.flows[key] = _Flow(demands, occupancy_s, 1.0, 1.0 if alone else 0.0, now_s, 1 if alone else 0)
        if alone:
            self.schedule(occupancy_s, key, 1)
        else:
            self._retime(self._component(key), now_s)

    def finish(self, key: int, version: int, now_s: float) -> bool:
        """End an activity if ``version`` is still current; return whether it ended."""
        flow = self.flows.get(key)
        if flow is None or flow.version != version:
            return False
        users, shared = self.users, False
        for r, _ in flow.demands:
            shared = shared or len(users[r]) > 1
        neighbours = self._component(key) if shared else ()
        del self.flows[key]
        for r, _ in flow.demands:
            del users[r][key]
        if neighbours:
            self._retime([other for other in neighbours if other != key], now_s)
        return True

    def _component(self, key: int) -> list[int]:
        """Return the activities connected to one through shared resources, itself included, in a fixed order."""
        seen, queue = {key: None}, [key]
        while queue:
            for r, _ in self.flows[queue.pop()].demands:
                for other in self.users[r]:
                    if other not in seen:
                        seen[other] = None
                        queue.append(other)
        return sorted(seen)

    def _retime(self, keys: Sequence[int], now_s: float) -> None:
        flows = [self.flows[key] for key in keys]
        for flow in flows:
            flow.remaining -= (now_s - flow.since_s) * flow.fraction / flow.occupancy_s
            flow.since_s = now_s
        fractions = [1.0] if len(flows) == 1 else fair_fractions([flow.demands for flow in flows])
        for key, flow, fraction in zip(keys, flows, fractions, strict=True):
            if fraction == flow.fraction:
                continue
            flow.fraction = fraction
            flow.version += 1
            self.schedule(max(flow.remaining, 0.0) * flow.occupancy_s / fraction, key, flow.version)
