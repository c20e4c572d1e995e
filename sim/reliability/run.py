"""One run of a training job on hardware that fails, as a SimPy process.

Nothing is decided between two failures. So the time from a restart to the next failure is one event, and its
checkpoints are counted by division. A test compares this with a run that simulates every checkpoint.
"""

import math
from collections.abc import Generator
from typing import Any

import simpy
from msgspec import Struct

from sim.reliability.failures import Failures
from sim.reliability.spec import ReliabilitySpec

Waiting = Generator[simpy.Event, Any, int | None]
"""A part of the process; returns the index of the component that failed during it, None without a failure."""


class Cycle(Struct, frozen=True, kw_only=True):
    """``num_steps`` training steps of ``step_s`` seconds each, then a checkpoint.

    Training stops for ``stall_s``; the checkpoint is usable ``background_s`` later.
    """

    num_steps: int
    step_s: float
    stall_s: float
    background_s: float

    @property
    def work_s(self) -> float:
        """Return the training time between two checkpoints in seconds."""
        return self.num_steps * self.step_s

    @property
    def period_s(self) -> float:
        """Return the time from one checkpoint to the next in seconds, without failures."""
        return self.work_s + self.stall_s


class Outcome(Struct):
    """The time of one run by purpose, in seconds. The five parts add up to ``elapsed_s``.

    ``useful_s``: training whose result is kept.
    ``lost_s``: training whose result was lost, and that was or would be done again.
    ``checkpoint_s``: stops for checkpoints, and the time of the last checkpoint.
    ``restart_s``: from failures until training resumed.
    ``waiting_s``: for a spare node.
    ``interruptions``: failures by component, including those during restarts.
    """

    interruptions: list[int]
    elapsed_s: float = 0.0
    useful_s: float = 0.0
    lost_s: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def goodput(self) -> float:
        """Return the goodput: the fraction of the time spent on training whose result is kept."""
        return self.useful_s / self.elapsed_s


def run_once(spec: ReliabilitySpec, cycle: Cycle, failures: Failures) -> Outcome:
    """Return one run of a job from its first step to its last, or to the end of its machine time."""
    environment = simpy.Environment()
    run = _Run(spec, cycle, failures, environment)
    environment.run(until=environment.process(run.live()))
    run.outcome.elapsed_s = environment.now
    return run.outcome


class _Run:
    """The state of a run. ``kept_steps``: steps in the last usable checkpoint."""

    def __init__(self, spec: ReliabilitySpec, cycle: Cycle, failures: Failures, environment: simpy.Environment) -> None:
        self.spec, self.cycle, self.failures, self.environment = spec, cycle, failures, environment
        self.kept_steps, self.is_done = 0, False
        self.outcome = Outcome([0] * len(spec.components))
        self.spares = simpy.Container(environment, init=spec.spares.num_nodes) if spec.spares is not None else None

    def live(self) -> Generator[simpy.Event, Any, None]:
        """Train until the job or its machine time is over; after each failure replace the node and restart."""
        while not self.is_done:
            failed = yield from self._train()
            while failed is not None:
                yield from self._replace(failed)
                failed = yield from self._restart()

    def _train(self) -> Waiting:
        """Train from the last usable checkpoint until a failure or the end."""
        length_s = self._time_to_finish_s()
        left_s = self._left_s()
        elapsed_s, failed = yield from self._exposed(min(length_s, left_s))
        self._account(elapsed_s, failed=failed is not None)
        self.is_done = failed is None
        return failed

    def _restart(self) -> Waiting:
        left_s = self._left_s()
        elapsed_s, failed = yield from self._exposed(min(self.spec.restart_s, left_s))
        self.outcome.restart_s += elapsed_s
        return failed

    def _replace(self, failed: int) -> Generator[simpy.Event, Any, None]:
        """Send the failed node to repair and wait for a spare one; nothing fails during the wait."""
        if self.spares is None or not self.spec.components[failed].takes_node:
            return
        begin_s = self.environment.now
        self.environment.process(self._repair(self.spares))
        yield self.spares.get(1) | self._until_end()
        self.outcome.waiting_s += self.environment.now - begin_s

    def _repair(self, spares: simpy.Container) -> Generator[simpy.Event, Any, None]:
        assert self.spec.spares is not None
        yield self.environment.timeout(self.spec.spares.repair_s)
        yield spares.put(1)

    def _exposed(self, length_s: float) -> Generator[simpy.Event, Any, tuple[float, int | None]]:
        """Wait until the next failure, at most ``length_s``; return the elapsed time and the failed component."""
        elapsed_s, failed = self.failures.within(length_s)
        if failed is not None:
            self.outcome.interruptions[failed] += 1
        yield self.environment.timeout(elapsed_s)
        return elapsed_s, failed

    def _left_s(self) -> float:
        """Return the remaining machine time of the job in seconds."""
        return math.inf if self.spec.duration_s is None else self.spec.duration_s - self.environment.now

    def _until_end(self) -> simpy.Event:
        """Return an event at the end of the machine time; it never occurs if the time is unlimited."""
        left_s = self._left_s()
        return self.environment.event() if math.isinf(left_s) else self.environment.timeout(left_s)

    def _remaining_s(self) -> float:
        """Return the training time from the last usable checkpoint to the last step."""
        if self.spec.num_steps is None:
            return math.inf
        return (self.spec.num_steps - self.kept_steps) * self.cycle.step_s

    def _time_to_finish_s(self) -> float:
        """Return the time until the checkpoint of the last step is usable, without failures, in seconds."""
        if self.spec.num_steps is None:
            return math.inf
        num_checkpoints = -(-(self.spec.num_steps - self.kept_steps) // self.cycle.num_steps)
        return self._remaining_s() + num_checkpoints * self.cycle.stall_s + self.cycle.background_s

    def _account(self, elapsed_s: float, *, failed: bool) -> None:
        """Divide the time since training resumed into its parts.

        After a failure, go back to the last usable checkpoint.
        """
        cycle, outcome = self.cycle, self.outcome
        num_whole, rest_s = divmod(elapsed_s, cycle.period_s)
        trained_s = min(num_whole * cycle.work_s + min(rest_s, cycle.work_s), self._remaining_s())
        outcome.checkpoint_s += elapsed_s - trained_s
        if not failed:
            outcome.useful_s += trained_s
            return
        num_usable = max(0, math.floor((elapsed_s - cycle.background_s) / cycle.period_s))
        kept_steps = num_usable * cycle.num_steps
        if self.spec.num_steps is not None and kept_steps >= self.spec.num_steps - self.kept_steps:
            kept_steps -= cycle.num_steps  # rounding: the last checkpoint is usable only at the end
        kept_s = kept_steps * cycle.step_s
        self.kept_steps += kept_steps
        outcome.useful_s += kept_s
        outcome.lost_s += trained_s - kept_s
