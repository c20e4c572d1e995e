"""A training and its update side by side, each at its own pace (Angel-PTM; Nie et al., VLDB 2023, section 5).

Iterations follow each other. The update takes one unit after the other: its state is read from a drive, updated with
all gradients that are there by then, and written back, while the state of the next unit is read. Reads and writes share
the drive, one at a time.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy
from msgspec import Struct

from sim.memory.lock_free import Account


class UnitTimes(Struct, frozen=True, kw_only=True):
    """Seconds of a unit: from an iteration's begin until its gradient is there, and of each part of its update."""

    unit: str
    gradient_s: float
    read_s: float
    update_s: float
    write_s: float


class LockFreeRun(Struct, frozen=True, kw_only=True):
    """What happened: when each iteration began, the most gradients that a unit's parameters lacked then, updates.

    ``gradients``: of each update, in the order of publication, the gradients of how many iterations it applied.
    """

    begins_s: Sequence[float]
    staleness: Sequence[int]
    gradients: Sequence[int]

    def step_s(self) -> float:
        """Return the mean time of an iteration in the second half of the run."""
        half = len(self.begins_s) // 2
        return (self.begins_s[-1] - self.begins_s[half]) / (len(self.begins_s) - 1 - half)

    def steady(self, counts: Sequence[int]) -> Sequence[int]:
        """Return the second half of counts."""
        return counts[len(counts) // 2 :]


def run_lock_free(
    units: Sequence[UnitTimes], iteration_s: float, num_iterations: int, max_staleness: int | None
) -> LockFreeRun:
    """Return so many iterations of ``iteration_s`` each, beside the update. ``max_staleness``: None: no bound.

    With 0 every iteration waits for the updates of all before it: synchronous training.
    """
    world = _World(units, iteration_s, num_iterations, max_staleness)
    world.clock.run(until=world.clock.process(world.train()))
    return LockFreeRun(begins_s=world.begins_s, staleness=world.staleness, gradients=world.gradients)


@dataclass(slots=True)
class _World:
    units: Sequence[UnitTimes]
    iteration_s: float
    num_iterations: int
    max_staleness: int | None
    clock: simpy.Environment = field(default_factory=simpy.Environment)
    begins_s: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    account: Account = field(init=False)
    drive: simpy.Resource = field(init=False)
    changed: simpy.Event = field(init=False)
    times: dict[str, UnitTimes] = field(init=False)

    def __post_init__(self) -> None:
        self.account = Account(tuple(unit.unit for unit in self.units), self.max_staleness)
        self.drive = simpy.Resource(self.clock)
        self.changed = self.clock.event()
        self.times = {unit.unit: unit for unit in self.units}
        self.clock.process(self._update())

    def train(self) -> Generator[simpy.Event, Any, None]:
        """Run all iterations, each once it may begin."""
        for iteration in range(self.num_iterations):
            while not self.account.may_begin(iteration):
                yield self.changed
            self.begins_s.append(self.clock.now)
            self.staleness.append(self.account.staleness(iteration))
            for unit in self.units:
                self.clock.process(self._arrive(unit))
            yield self.clock.timeout(self.iteration_s)

    def _arrive(self, unit: UnitTimes) -> Generator[simpy.Event, Any, None]:
        yield self.clock.timeout(unit.gradient_s)
        self.account.made(unit.unit)
        self._tell()

    def _update(self) -> Generator[simpy.Event, Any, None]:
        reading = dict[str, simpy.Process]()
        writing = dict[str, simpy.Process]()
        while True:
            while not (unit := self.account.next_unit()):
                yield self.changed
            yield reading.pop(unit) if unit in reading else self._reading(unit, writing)
            count = self.account.take(unit)
            ahead = self.account.next_unit()
            if ahead not in {"", unit, *reading}:
                reading[ahead] = self._reading(ahead, writing)
            yield self.clock.timeout(self.times[unit].update_s)
            writing[unit] = self.clock.process(self._write(unit, count))

    def _reading(self, unit: str, writing: dict[str, simpy.Process]) -> simpy.Process:
        return self.clock.process(self._read(unit, writing.get(unit)))

    def _read(self, unit: str, written: simpy.Process | None) -> Generator[simpy.Event, Any, None]:
        """Read a unit's state, after its last update has been written."""
        if written is not None:
            yield written
        yield from self._on_drive(self.times[unit].read_s)

    def _write(self, unit: str, count: int) -> Generator[simpy.Event, Any, None]:
        yield from self._on_drive(self.times[unit].write_s)
        self.account.applied(unit, count)
        self.gradients.append(count)
        self._tell()

    def _on_drive(self, seconds: float) -> Generator[simpy.Event, Any, None]:
        with self.drive.request() as turn:
            yield turn
            yield self.clock.timeout(seconds)

    def _tell(self) -> None:
        """Wake all who wait for gradients or parameters."""
        changed, self.changed = self.changed, self.clock.event()
        changed.succeed()
