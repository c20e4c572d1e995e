"""Measured steps spread over processes, each of which keeps what it has compiled of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from scenarios.calibration.constants import Constant
from scenarios.calibration.measured_steps import Array, StepFacts, StepsHere, measured_steps

_FAILED: Final = None
"""What a process answers in the place of an error."""


class Steps(Protocol):
    """Measured steps, wherever they are simulated."""

    @property
    def facts(self) -> Sequence[StepFacts]:
        """Return what is known of every step."""
        ...

    def predicted_s(self, constants: Mapping[Constant, float], which: Sequence[int]) -> Array:
        """Return the times of some of the steps with these constants."""
        ...


@contextmanager
def steps_in_processes(tables: Sequence[Path], num_jobs: int) -> Iterator[Steps]:
    """Yield the steps of tables, simulated by so many processes, or by this one. Raises as ``measured_steps``."""
    if num_jobs == 1:
        yield StepsHere(measured_steps(tables))
        return
    context = get_context("spawn")
    ends = [context.Pipe() for _ in range(num_jobs)]
    processes = [
        context.Process(target=_serve, args=(theirs, tables, slice(job, None, num_jobs)), daemon=True)
        for job, (_, theirs) in enumerate(ends)
    ]
    for process, (_, theirs) in zip(processes, ends, strict=True):
        process.start()
        theirs.close()  # so that the end of a process is the end of its connection
    try:
        yield _StepsInProcesses.of([ours for ours, _ in ends], tables)
    finally:
        for process in processes:
            process.terminate()
            process.join()


@dataclass(frozen=True, slots=True)
class _StepsInProcesses:
    """Steps of which process k of n has every n-th, from k on."""

    workers: Sequence[Connection]
    tables: Sequence[Path]
    facts: Sequence[StepFacts] = field(repr=False)

    @classmethod
    def of(cls, workers: Sequence[Connection], tables: Sequence[Path]) -> "_StepsInProcesses":
        """Wait until all processes have read their steps."""
        parts: list[Sequence[StepFacts]] = _received(workers, lambda: measured_steps(tables))
        return cls(workers, tables, [parts[at % len(parts)][at // len(parts)] for at in range(sum(map(len, parts)))])

    def predicted_s(self, constants: Mapping[Constant, float], which: Sequence[int]) -> Array:
        """Return the times of some of the steps with these constants."""
        num = len(self.workers)
        for job, worker in enumerate(self.workers):
            worker.send((constants, [place // num for place in which if place % num == job]))
        parts: list[Sequence[float]] = _received(
            self.workers, lambda: StepsHere(measured_steps(self.tables)).predicted_s(constants, which)
        )
        of_worker = [iter(part) for part in parts]
        return np.array([next(of_worker[place % num]) for place in which])


def _received(workers: Sequence[Connection], same_here: Callable[[], object]) -> list[Any]:
    """Return what the processes answer. Where one failed, do the same here to raise its error: not all can be sent."""
    try:
        answers = [worker.recv() for worker in workers]
    except EOFError:
        message = "a process ended before its work was done, perhaps for want of memory"
        raise RuntimeError(message) from None
    if any(answer is _FAILED for answer in answers):
        same_here()
        raise RuntimeError("a process failed at what another did not")
    return answers


def _serve(parent: Connection, tables: Sequence[Path], part: slice) -> None:
    """Send the facts of a part of the steps, then predictions, as long as they are asked for."""
    with suppress(EOFError, KeyboardInterrupt):
        try:
            steps = StepsHere(measured_steps(tables, part=part))
            parent.send(steps.facts)
            while True:
                parent.send(steps.predicted_s(*parent.recv()).tolist())
        except EOFError:
            raise
        except Exception:
            parent.send(_FAILED)
