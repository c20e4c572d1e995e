"""Where the points of a sweep are simulated: anything that is a ``concurrent.futures.Executor``.

So a cluster's executor can take the place of the local processes; what it runs and returns can be pickled.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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


def available_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def local_workers(num_jobs: int) -> Iterator[Executor]:
    """Yield so many processes, or this one where one is enough. After an error, what has not begun never does."""
    if num_jobs == 1:
        yield ThisProcess()
        return
    executor = ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn"))
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()
