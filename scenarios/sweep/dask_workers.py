"""A Dask cluster as a place where points of a sweep, or plans of a search, are simulated.

Dask runs what a lost worker had begun on another one, up to three times. Needs ``distributed`` (the extra ``cluster``).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from importlib.metadata import version
from threading import BoundedSemaphore
from typing import Final, ParamSpec, TypeVar

from distributed import Client
from distributed import Future as DaskFuture
from distributed.scheduler import KilledWorker

from scenarios.errors import Origin, ScenarioError

P = ParamSpec("P")
T = TypeVar("T")

_ANSWER_S: Final = 10
"""Time limit for a scheduler to answer, and for its first worker to be there."""
_LEAST_AT_ONCE: Final = 256
_PER_THREAD: Final = 4
"""Calls that the scheduler has at a time: so many for each thread of its workers, and no fewer than the least."""


class ClusterExecutor(Executor):
    """Runs calls on a cluster, some at a time: ``submit`` waits until fewer than ``most`` are not done.

    A scheduler that gets thousands of calls at once reads them for so long that its connections end. A result is
    released as soon as it is here: Dask's own executor leaves results on workers, and computes a lost one's again.
    """

    def __init__(self, client: Client, most: int) -> None:
        self._client = client
        self._free = BoundedSemaphore(most)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of a call, once it may begin."""
        self._free.acquire()
        future: Future[T] = Future()
        self._client.loop.add_callback(self._end, self._client.submit(fn, *args, pure=False, **kwargs), future)
        return future

    async def _end(self, remote: DaskFuture, future: Future[T]) -> None:
        """Hand on what comes of a call. Runs in the client's loop."""
        try:
            future.set_result(await remote)
        except CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()
        except Exception as error:
            future.set_exception(error)
        finally:
            remote.release()
            self._free.release()


@contextmanager
def dask_workers(address: str) -> Iterator[Executor]:
    """Yield the workers of a Dask scheduler, as in ``dask_workers("tcp://10.0.0.1:8786")``.

    Workers that come later help. Where all workers are gone, work waits for new ones. Raises ScenarioError where no
    scheduler or worker answers, where a worker has another version of this program, where the scheduler goes away,
    and for work that ended three workers.
    """
    origin = Origin(option=f"--scheduler {address[:200]}")
    try:
        client = Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        remedy = "start one with: dask scheduler, and workers with: dask worker ADDRESS"
        raise ScenarioError(origin, "", "no Dask scheduler answers at this address", remedy) from error
    with client:
        _refuse_unfit(client, origin)
        most = max(_LEAST_AT_ONCE, _PER_THREAD * sum(client.nthreads().values()))
        try:
            yield ClusterExecutor(client, most)
        except CancelledError as error:
            remedy = "start it and the workers again; a sweep with --resume goes on where it was"
            raise ScenarioError(origin, "", "the scheduler went away", remedy) from error
        except KilledWorker as error:
            rule = f"one simulation ended {error.args[2]} workers, the last one at {error.args[1].address}"
            remedy = "give workers more memory, or simulate that point by itself"
            raise ScenarioError(origin, "", rule, remedy) from error


def _refuse_unfit(client: Client, origin: Origin) -> None:
    """Raise ScenarioError unless there are workers, all with this version of the program."""
    try:
        client.wait_for_workers(1, timeout=_ANSWER_S)
    except TimeoutError as error:
        raise ScenarioError(origin, "", "the scheduler has no workers", "start some: dask worker ADDRESS") from error
    here = version("meshtwin")
    for worker, there in client.run(version, "meshtwin", on_error="return").items():
        if there != here:
            has = f"meshtwin {there}" if isinstance(there, str) else "no meshtwin"
            rule = f"the worker {worker} has {has}, and this is {here}"
            raise ScenarioError(origin, "", rule, "install the same version everywhere")
