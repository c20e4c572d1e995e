"""SimPy processes whose activities share resources, for simulations that learn as time passes what comes next.

    world = SharedWorld()
    world.clock.process(worker(world))               # yields from world.spend(activity)
    world.clock.run()

A plan knows all its ops before it runs, and has an event loop of its own (``loop.py``). What a parameter server sends
depends on what other workers have pushed by then: no plan can say it.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import simpy

from sim.engine.prices.activity import Activity
from sim.engine.running.sharing import SharedResources

Steps = Generator[simpy.Event, Any, None]
"""What a SimPy process yields."""


@dataclass(slots=True)
class SharedWorld:
    """A clock, and the activities that now share resources, max-min fairly (``sharing.py``)."""

    clock: simpy.Environment = field(default_factory=simpy.Environment)
    _shared: SharedResources = field(init=False)
    _ends: dict[int, simpy.Event] = field(init=False, default_factory=dict)
    _keys: "count[int]" = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self._shared = SharedResources(self._schedule)

    def spend(self, activity: Activity) -> Steps:
        """Let an activity pass: its latency, then its use of resources."""
        if activity.latency_s > 0:
            yield self.clock.timeout(activity.latency_s)
        if activity.demands:
            key, end = next(self._keys), self.clock.event()
            self._ends[key] = end
            self._shared.start(key, activity.demands, self.clock.now, activity.single_s, yields=activity.yields)
            yield end

    def _schedule(self, delay_s: float, key: int, version: int) -> None:
        timeout = self.clock.timeout(delay_s)
        timeout.callbacks.append(partial(self._finish, key, version))

    def _finish(self, key: int, version: int, _event: simpy.Event) -> None:
        if self._shared.finish(key, version, self.clock.now):
            self._shared.spans.clear()
            self._ends.pop(key).succeed()
