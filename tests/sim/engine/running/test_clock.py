"""What the fast loop does not do, as its docstring says."""

from collections.abc import Generator
from typing import Any

import simpy

from sim.engine.running.loop import Clock


def waits_for_the_past(environment: simpy.Environment, seen: list[float]) -> Generator[simpy.Event, Any, None]:
    """Wait for an event that is over."""
    past = environment.event()
    past.succeed()
    yield environment.timeout(1.0)
    yield past
    seen.append(environment.now)


def test_a_process_that_asks_for_the_past_waits_for_ever() -> None:
    """SimPy's own environment lets it go on; the clock of compiled plans does not, so processes need the former."""
    plain, clock = simpy.Environment(), Clock()
    of_plain, of_clock = list[float](), list[float]()
    plain.process(waits_for_the_past(plain, of_plain))
    clock.process(waits_for_the_past(clock, of_clock))
    plain.run()
    clock.drain()
    assert (of_plain, of_clock) == ([1.0], [])
