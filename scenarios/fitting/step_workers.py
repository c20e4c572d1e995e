"""Measured steps distributed over processes, each of which caches its compiled plans."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from backends.errors import LostProcessError
from backends.processes import Line, local_processes
from scenarios.fitting.constants import Constant
from scenarios.fitting.measured_steps import Array, StepFacts, StepsHere, measured_steps

_FAILED: Final = None
"""A process' answer in place of an error."""


class Steps(Protocol):
    """Measured steps, simulated in this process or in others."""

    @property
    def facts(self) -> Sequence[StepFacts]:
        """Return the facts of every step."""
        ...

    def predicted_s(self, constants: Mapping[Constant, float], which: Sequence[int]) -> Array:
        """Return the times of some of the steps with these constants."""
        ...


@contextmanager
def steps_in_processes(tables: Sequence[Path], num_jobs: int) -> Iterator[Steps]:
    """Yield the steps of tables, simulated by ``num_jobs`` processes, or by this one.

    Raises the errors of ``measured_steps``, and LostProcessError if a process ends early.
    """
    if num_jobs == 1:
        yield StepsHere(measured_steps(tables))
        return
    with local_processes(num_jobs) as processes:
        for job, process in enumerate(processes):
            with suppress(EOFError):  # an early end is noticed when the answer is received
                process.begin(_serve, tables, slice(job, None, num_jobs))
        yield _StepsInProcesses.of([process.line for process in processes], tables)


@dataclass(frozen=True, slots=True)
class _StepsInProcesses:
    """Steps in n processes; process k has every n-th step, from the k-th on."""

    workers: Sequence[Line]
    tables: Sequence[Path]
    facts: Sequence[StepFacts] = field(repr=False)

    @classmethod
    def of(cls, workers: Sequence[Line], tables: Sequence[Path]) -> "_StepsInProcesses":
        """Wait until all processes have read their steps."""
        parts: list[Sequence[StepFacts]] = _received(workers, lambda: measured_steps(tables))
        return cls(workers, tables, [parts[at % len(parts)][at // len(parts)] for at in range(sum(map(len, parts)))])

    def predicted_s(self, constants: Mapping[Constant, float], which: Sequence[int]) -> Array:
        """Return the times of some of the steps with these constants."""
        num = len(self.workers)
        for job, worker in enumerate(self.workers):
            with suppress(EOFError):  # an early end is noticed when the answer is received
                worker.send((constants, [place // num for place in which if place % num == job]))
        parts: list[Sequence[float]] = _received(
            self.workers, lambda: StepsHere(measured_steps(self.tables)).predicted_s(constants, which)
        )
        of_worker = [iter(part) for part in parts]
        return np.array([next(of_worker[place % num]) for place in which])


def _received(workers: Sequence[Line], same_here: Callable[[], object]) -> list[Any]:
    """Return the answers of the processes.

    After a failure, repeat the work here to raise its error, as not all errors can be sent.
    """
    try:
        answers = [worker.receive() for worker in workers]
    except EOFError as error:
        message = "a process ended before its work was done"
        raise LostProcessError(message) from error
    if any(answer is _FAILED for answer in answers):
        same_here()
        raise RuntimeError("a process failed at what another did not")
    return answers


def _serve(parent: Line, tables: Sequence[Path], part: slice) -> None:
    """Send the facts of a part of the steps, then predictions until no more are requested."""
    try:
        steps = StepsHere(measured_steps(tables, part=part))
        parent.send(steps.facts)
        while True:
            parent.send(steps.predicted_s(*parent.receive()).tolist())
    except EOFError:
        raise
    except Exception:
        parent.send(_FAILED)
