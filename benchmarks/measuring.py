"""Measurement of commands (time and memory, from outside) and of functions (time, from inside), and their table."""

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import simpy

LAUNCHER: Final = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``passed``: None if there is no target."""

    what: str
    measured: str
    target: str = ""
    passed: bool | None = None


@dataclass(frozen=True, slots=True)
class CommandCost:
    """The cost of one run of a command: elapsed seconds, processor seconds and peak memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def bare_loop_s() -> float:
    """Return the processor seconds of a bare SimPy loop of 200,000 timeouts, a measure of the machine."""
    environment = simpy.Environment()

    def wait() -> Iterator[simpy.Event]:
        for _ in range(200_000):
            yield environment.timeout(1.0)

    environment.process(wait())
    began_s = process_time()
    environment.run()
    return process_time() - began_s


def command_cost(arguments: Sequence[str]) -> CommandCost:
    """Return the cost of one run of a command. Raises CalledProcessError if it fails.

    Python may write its compiled files, also if the environment forbids it: users compile the program only once.
    """
    command = [sys.executable, str(LAUNCHER), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return CommandCost(**json.loads(done.stdout))


def median_cost(arguments: Sequence[str], repeats: int) -> CommandCost:
    """Return the median times and the largest memory of several runs."""
    costs = [command_cost(arguments) for _ in range(repeats)]
    wall_s, cpu_s = (statistics.median(times_s) for times_s in zip(*((c.wall_s, c.cpu_s) for c in costs), strict=True))
    return CommandCost(wall_s, cpu_s, max(c.peak_bytes for c in costs))


def interleaved_s(functions: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Return the seconds of each function in each round. Every round calls all functions in turn.

    So a temporary slowdown of the machine affects all functions, and their ratio stays.
    """
    rounds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for times_s, function in zip(rounds, functions, strict=True):
            gc.collect()
            began_s = perf_counter()
            function()
            times_s.append(perf_counter() - began_s)
    return rounds


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    verdict = {True: "met", False: "MISSED", None: ""}
    lines = ["| what | measured | target | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {r.what} | {r.measured} | {r.target} | {verdict[r.passed]} |" for r in rows)])
