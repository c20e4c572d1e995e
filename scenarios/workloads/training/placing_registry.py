"""Lazy imports of moving experts and of lock-free executions: other scenarios do without them."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from scenarios.workloads.effort import Announce
from scenarios.workloads.executing import Executed, ExecutionOptions
from scenarios.workloads.steps.running import SimulatedStep
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import Detail
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing import replicas
from sim.plan.words.program import Plan
from sim.training.spec.job import DenseTraining


class SimulateMoving(Protocol):
    """A function from a scenario to its last step; see ``placing.steps``."""

    def __call__(
        self, scenario: StepScenario, *, detail: Detail | None, fold: bool, announce: Announce | None
    ) -> SimulatedStep:
        """Return the simulated step."""


class Deciding(Protocol):
    """Functions of ``placing.decisions``."""

    def placements_of(self, job: DenseTraining, pricing: ClusterPricing) -> "tuple[replicas.Placed, ...]":
        """Return the placement of every step."""

    def placed_job(self, job: DenseTraining, placed: "replicas.Placed", step: int) -> DenseTraining:
        """Return the job of a step."""

    def placed_plan(self, job: DenseTraining, placed: "replicas.Placed", name: str) -> Plan:
        """Return the plan of a step."""


def load_moving() -> SimulateMoving:
    """Return ``scenarios.workloads.training.placing.steps.simulate_moving``, imported."""
    simulate: SimulateMoving = import_module("scenarios.workloads.training.placing.steps").simulate_moving
    return simulate


def load_executing() -> Callable[[StepScenario, ExecutionOptions], Executed | None]:
    """Return ``scenarios.workloads.training.placing.executing.execute_moving``, imported."""
    execute: Callable[[StepScenario, ExecutionOptions], Executed | None] = import_module(
        "scenarios.workloads.training.placing.executing"
    ).execute_moving
    return execute


def load_lock_free_execution() -> Callable[[StepScenario, ExecutionOptions], Executed]:
    """Return ``scenarios.workloads.training.lock_free_execution.execute_lock_free``, imported."""
    execute: Callable[[StepScenario, ExecutionOptions], Executed] = import_module(
        "scenarios.workloads.training.lock_free_execution"
    ).execute_lock_free
    return execute


def load_deciding() -> Deciding:
    """Return ``scenarios.workloads.training.placing.decisions``, imported."""
    deciding: Deciding = import_module("scenarios.workloads.training.placing.decisions")
    return deciding
