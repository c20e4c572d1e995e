"""Lazy import of moving experts: a scenario whose experts stay does without them."""

from importlib import import_module
from typing import Protocol

from scenarios.workloads.effort import Announce
from scenarios.workloads.steps.running import SimulatedStep
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.workload import Detail


class SimulateMoving(Protocol):
    """A function from a scenario to its last step."""

    def __call__(
        self, scenario: TrainingScenario, *, detail: Detail | None = None, fold: bool = True,
        announce: Announce | None = None,
    ) -> SimulatedStep:  # fmt: skip
        """Return the simulated step."""


def load_moving() -> SimulateMoving:
    """Return ``scenarios.workloads.training.placing.steps.simulate_moving``, imported."""
    simulate: SimulateMoving = import_module("scenarios.workloads.training.placing.steps").simulate_moving
    return simulate
