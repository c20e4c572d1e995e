"""Workers that share parameter servers, as time passes: each asks, computes and pushes, and the servers' state is that
of the moment.

A step of a worker, in order:

1. it asks all servers for its rows; they gather what they send; the rows come;
2. its own part: rows to the device, layers forward and backward, gradients to the host (``WorkerStep.local_s``);
3. it pushes rows, and the servers apply them. Meanwhile all workers sum the gradients of their dense layers, once the
   last of them has its own; or dense layers go to the servers and back with the rows.

Messages, sums and the servers' memory share links and hosts, max-min fairly.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import simpy
from msgspec import Struct
from numpy.typing import NDArray

from sim.embedding.het_run import HEADER_BYTES, ON_SERVERS, Dense
from sim.embedding.policies import Ints
from sim.embedding.turns import Workers
from sim.engine.running.processes import SharedWorld, Steps
from sim.parameter_servers.prices import ServerPricing
from sim.parameter_servers.requests import Requests

Floats = NDArray[np.float64]
PARTS: Final = ("pull", "local", "push")


class WorkerStep(Struct, frozen=True, kw_only=True):
    """A step of each worker. ``local_s``: of its own part, of a worker of speed 1. ``dense_bytes``: of dense layers.

    ``key_bytes``: of a row that is asked for.
    """

    local_s: float
    row_bytes: int
    dense_bytes: int
    dense: Dense = "all_reduce"
    key_bytes: int = HEADER_BYTES


class WorkerTimes(Struct, frozen=True):
    """When each step of each worker has ended [steps, workers], and its parts ``PARTS`` [parts, steps, workers]."""

    ends_s: Floats
    parts_s: Floats

    def step_s(self, first: int) -> float:
        """Return the mean time from one step's end to the next, of the steps from ``first`` on."""
        before = self.ends_s[first - 1] if first else np.zeros(self.ends_s.shape[1])
        return float((self.ends_s[-1] - before).mean()) / (len(self.ends_s) - first)


def run_workers(
    workers: Workers, step: WorkerStep, prices: ServerPricing, requests: Requests, num_steps: int
) -> WorkerTimes:
    """Return the times of so many steps of each worker; ``requests`` are called in the order of simulated time."""
    world = _Workers(workers, step, prices, requests, num_steps)
    for worker in range(workers.num_workers):
        world.shared.clock.process(world.train(worker))
    world.shared.clock.run()
    return WorkerTimes(world.ends_s, world.parts_s)


@dataclass(slots=True)
class _Workers:
    workers: Workers
    step: WorkerStep
    prices: ServerPricing
    requests: Requests
    num_steps: int
    shared: SharedWorld = field(default_factory=SharedWorld)
    ends_s: Floats = field(init=False)
    parts_s: Floats = field(init=False)
    changed: simpy.Event = field(init=False)
    summed: list[simpy.Event] = field(init=False)
    counts: Counter[tuple[str, int]] = field(init=False, default_factory=Counter)
    """How many workers have been answered, have a gradient, and have written, by step."""

    def __post_init__(self) -> None:
        num_workers = self.workers.num_workers
        self.ends_s = np.zeros((self.num_steps, num_workers))
        self.parts_s = np.zeros((len(PARTS), self.num_steps, num_workers))
        self.changed = self.shared.clock.event()
        self.summed = [self.shared.clock.event() for _ in range(self.num_steps)]

    def train(self, worker: int) -> Steps:
        """Run a worker's steps."""
        clock, slow = self.shared.clock, self.workers.relative_step_times[worker]
        for step in range(self.num_steps):
            yield from self._until(partial(self._may_read, step))
            moments = [clock.now]
            yield from self._pull(worker)
            self._tell("answered", step)
            moments.append(clock.now)
            yield clock.timeout(self.step.local_s * slow)
            moments.append(clock.now)
            pushed = clock.process(self._push(worker, step))
            if self.step.dense != ON_SERVERS:
                self._give(step)
                yield self.summed[step]
            yield pushed
            moments.append(clock.now)
            self.parts_s[:, step, worker] = np.diff(moments)
            self.ends_s[step, worker] = clock.now
            self._tell("written", step)

    def _pull(self, worker: int) -> Steps:
        spend, prices, step = self.shared.spend, self.prices, self.step
        asked = self._of_servers(self.requests.ask(worker))
        yield from spend(prices.message(worker, "to_servers", step.key_bytes * asked))
        sent = self._of_servers(self.requests.answer(worker))
        yield from spend(prices.rows(step.row_bytes * sent))
        yield from spend(prices.message(worker, "from_servers", self._row_bytes(sent)))

    def _push(self, worker: int, step: int) -> Steps:
        if self.workers.consistency == "bsp":
            yield from self._until(lambda: self.counts["answered", step] == self.workers.num_workers)
        spend, prices = self.shared.spend, self.prices
        pushed = self._of_servers(self.requests.write(worker, step))
        yield from spend(prices.message(worker, "to_servers", self._row_bytes(pushed)))
        self.requests.apply(worker)
        yield from spend(prices.rows(self.step.row_bytes * pushed))

    def _row_bytes(self, rows: Floats) -> Floats:
        """Return the bytes of so many rows of each server, and of its part of dense layers, if they lie there."""
        dense_bytes = self.step.dense_bytes / len(rows) if self.step.dense == ON_SERVERS else 0.0
        return (HEADER_BYTES + self.step.row_bytes) * rows + dense_bytes

    def _of_servers(self, rows: Ints) -> Floats:
        """Return how many of some rows each server has; they take turns, row by row."""
        count = self.prices.num_servers
        return np.bincount(rows % count, minlength=count).astype(np.float64)

    def _give(self, step: int) -> None:
        """Give a worker's gradients of the dense layers to their sum, which begins with the last worker's."""
        self.counts["given", step] += 1
        if self.counts["given", step] == self.workers.num_workers:
            self.shared.clock.process(self._sum(step))

    def _sum(self, step: int) -> Steps:
        yield from self.shared.spend(self.prices.sum_of_all(self.step.dense_bytes))
        self.summed[step].succeed()

    def _may_read(self, step: int) -> bool:
        """Return whether a worker may begin a step: ``slack`` steps beyond what all have written, under ASP any."""
        if self.workers.consistency == "asp":
            return True
        last = step - 1 - self.workers.slack
        return last < 0 or self.counts["written", last] == self.workers.num_workers

    def _until(self, holds: Callable[[], bool]) -> Steps:
        while not holds():
            yield self.changed

    def _tell(self, what: str, step: int) -> None:
        """Count a worker, and wake all who wait."""
        self.counts[what, step] += 1
        changed, self.changed = self.changed, self.shared.clock.event()
        changed.succeed()
