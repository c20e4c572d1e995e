"""Where the points of a sweep are simulated: anything that is a ``concurrent.futures.Executor``.

Local processes, or the workers of a Dask cluster; what they run and return can be pickled.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from backends.errors import LostProcessError
from backends.processes import Line, LocalProcess, local_processes, replace_ended
from scenarios.errors import Origin, ScenarioError

P = ParamSpec("P")
T = TypeVar("T")

_TRIES: Final = 2
"""How often a call is begun whose process ends."""

OpenWorkers = Callable[[int], AbstractContextManager[Executor]]
"""From a number of processes to what runs there."""


class ThisProcess(Executor):
    """Runs what is submitted at once, here."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return a future that is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class OtherProcesses(Executor):
    """Runs what is submitted in processes of this machine; a thread here waits for each of them.

    A new process takes the place of one that ended, as one that ran out of memory, and its call runs once more. The
    future of a call that ended two processes holds LostProcessError.
    """

    def __init__(self, processes: list[LocalProcess]) -> None:
        self._threads = ThreadPoolExecutor(len(processes))
        self._processes = processes
        self._is_ending = False
        self._idle: SimpleQueue[LocalProcess] = SimpleQueue()
        for process in processes:
            self._idle.put(process)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of a call in the first process that is idle."""
        return self._threads.submit(self._called, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for what was submitted, or let go of it."""
        self._is_ending = not wait
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _called(self, function: Callable[..., T], arguments: Sequence[Any], named: Mapping[str, Any]) -> T:
        for _ in range(_TRIES):
            process = self._idle.get()
            try:
                process.begin(_answer, function, arguments, named)
                error, result = process.line.receive()
            except EOFError:
                if self._is_ending:
                    break
                process = replace_ended(self._processes, process)
                continue
            finally:
                self._idle.put(process)
            if error is not None:
                raise error
            found: T = result
            return found
        message = "a process ended before its work was done"
        raise LostProcessError(message)


def _answer(line: Line, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Send what a call raised and what it returned, in a process of ``OtherProcesses``."""
    try:
        line.send((None, function(*arguments, **named)))
    except Exception as error:
        line.send((error, None))


def available_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def local_workers(num_jobs: int, imported: Sequence[str] = ()) -> Iterator[Executor]:
    """Yield so many processes, or this one where one is enough. After an error all work ends at once.

    ``imported``: modules that the work needs, as in ``local_processes``.
    """
    if num_jobs == 1:
        yield ThisProcess()
        return
    with local_processes(num_jobs, imported=imported) as processes:
        executor = OtherProcesses(processes)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
        executor.shutdown()


def workers_at(scheduler: str | None, jobs: int | None = None, imported: Sequence[str] = ()) -> OpenWorkers:
    """Return what opens local processes, or the workers of a Dask scheduler, which has its own number of them.

    ``imported``: modules that local processes need. Raises ScenarioError where Dask is not installed, or ``jobs`` asks
    for another number of workers.
    """
    if scheduler is None:
        return partial(local_workers, imported=imported)
    origin = Origin(option=f"--scheduler {scheduler[:200]}")
    if jobs is not None:
        rule = "a cluster has its own number of workers, and --jobs asks for local processes"
        raise ScenarioError(origin, "", rule, "leave one of them out")
    if find_spec("distributed") is None:
        raise ScenarioError(origin, "", "Dask is not installed", "pip install 'meshtwin[cluster]'")
    opened: Callable[[str], AbstractContextManager[Executor]] = import_module(
        "scenarios.sweep.dask_workers"
    ).dask_workers
    return lambda _: opened(scheduler)
