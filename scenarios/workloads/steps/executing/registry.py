"""Lazy import of execution: a simulation needs no writer of files."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scenarios.workloads import executing
from scenarios.workloads.steps.scenario import StepScenario

Execute = Callable[[StepScenario, "executing.ExecutionOptions"], "executing.Executed | None"]
"""A run of a step; see ``scenarios.workloads.steps.executing.execution``."""


def load_execution() -> Execute:
    """Return ``scenarios.workloads.steps.executing.execution.run``, imported."""
    run: Execute = import_module("scenarios.workloads.steps.executing.execution").run
    return run


def load_execution_of(kind: str) -> "Callable[[Any, executing.ExecutionOptions], executing.Executed | None]":
    """Return ``execute`` of the module ``execution`` of a kind of work, imported; it takes that kind's scenarios."""
    execute: Callable[[Any, executing.ExecutionOptions], executing.Executed | None] = import_module(
        f"scenarios.workloads.{kind}.execution"
    ).execute
    return execute
