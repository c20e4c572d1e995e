"""Lazy import of execution: a simulation needs no writer of files."""

from collections.abc import Callable
from importlib import import_module

from scenarios.workloads.executing import Executed, ExecutionOptions
from scenarios.workloads.steps.scenario import StepScenario

Execute = Callable[[StepScenario, ExecutionOptions], Executed | None]
"""A run of a step; see ``scenarios.workloads.steps.executing.execution``."""


def load_execution() -> Execute:
    """Return ``scenarios.workloads.steps.executing.execution.run``, imported."""
    run: Execute = import_module("scenarios.workloads.steps.executing.execution").run
    return run
