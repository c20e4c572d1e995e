"""Worker processes on this machine, one per rank of a job. They run one request after the other."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import torch.distributed as dist
from msgspec import Struct

from backends.execution.errors import CommunicationError, ExecutionError, RankError
from backends.execution.request import DeviceKind
from backends.execution.silence import LOOK_S, SILENCE_S, Silence, silent_ranks
from backends.processes import Line, LocalProcess, local_processes
from backends.torch.launching.environment import JobMember
from backends.torch.launching.store import served_store
from backends.torch.launching.worker import Worker, joined_worker

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

_GRACE_S: Final = 2.0
"""Time to wait for the error of a lost peer, which is the cause of the error that its neighbour reports."""


class _Returned(Struct, Generic[Value], frozen=True):
    """The message of a rank that has finished its work."""

    value: Value


class _Failed(Struct, frozen=True):
    """The message of a rank that raised an error. ``lost_a_peer``: the error may come from the end of another rank."""

    message: str
    lost_a_peer: bool


class _Ended(Struct, frozen=True):
    """The notice that the process of a rank ended without a message."""


_Inbox = SimpleQueue[tuple[int, object]]


class LocalRanks:
    """A pool of worker processes on this machine, one per rank. Each starts once, joins the job and waits for work.

        with LocalRanks(4, "cpu") as ranks:
            first, *others = ranks.call(run_request, request)

    ``timeout_s``: longest silence of a rank that has work. A rank also answers while it computes.
    If a rank fails or is killed, even while it waits for work, the next call raises RankError with the number of that
    rank and ends all ranks.
    """

    def __init__(self, size: int, device: DeviceKind, timeout_s: float = SILENCE_S) -> None:
        self.size, self._device, self._timeout_s = size, device, timeout_s
        self._inbox: _Inbox = SimpleQueue()
        self._started = ExitStack()
        self._processes: Sequence[LocalProcess] = ()

    def __enter__(self) -> Self:
        store, port = served_store()
        self._started.callback(_let_go, store)  # it serves until all ranks are gone
        self._processes = self._started.enter_context(local_processes(self.size, beat_s=LOOK_S, imported=[__name__]))
        for rank, process in enumerate(self._processes):
            member = JobMember(
                rank=rank, size=self.size, local_rank=rank, local_size=self.size, address="localhost", port=port,
                launcher_serves=True,
            )  # fmt: skip
            process.begin(_serve, member, self._device)
            Thread(target=_listen, args=(process, rank, self._inbox), name=f"rank {rank}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes = ()
        self._started.__exit__(kind, error, trace)

    def call(
        self,
        function: Callable[Concatenate[Worker, Arguments], Value],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Value]:
        """Call ``function(worker, ...)`` on every rank; return the results of all ranks, in rank order.

        Raises RankError with the number of a rank that was killed, failed or does not answer. Then no process is left.
        """
        if not self._processes:
            raise ExecutionError("the ranks have ended; start others")
        try:
            for rank, process in enumerate(self._processes):
                work = (process, (function, arguments, named), rank, self._inbox)
                Thread(target=_give, args=work, name=f"work of rank {rank}", daemon=True).start()
            results: dict[int, Value] = _results(self._processes, self._inbox, self._timeout_s)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return [results[rank] for rank in range(self.size)]

    def call_for_first(
        self,
        function: Callable[Concatenate[Worker, Arguments], Value],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Value]:
        """Do what ``call`` does. This process reports the results of a job of local ranks."""
        return self.call(function, *arguments, **named)


def _let_go(store: object) -> None:
    del store


def _give(process: LocalProcess, work: object, rank: int, inbox: _Inbox) -> None:
    """Send work to a rank."""
    try:
        process.line.send(work)
    except EOFError:
        pass  # ``_listen`` reports that the process has ended
    except Exception as error:  # an error of pickling must be reported
        inbox.put((rank, _Failed(f"{type(error).__name__}: {error}", lost_a_peer=False)))


def _listen(process: LocalProcess, rank: int, inbox: _Inbox) -> None:
    """Put the messages of a rank into the inbox until its process ends."""
    try:
        while True:
            inbox.put((rank, process.line.receive()))
    except EOFError:
        inbox.put((rank, _Ended()))
    except Exception as error:  # an error of unpickling must be reported
        inbox.put((rank, _Failed(f"{type(error).__name__}: {error}", lost_a_peer=False)))


def _results(processes: Sequence[LocalProcess], inbox: _Inbox, timeout_s: float) -> dict[int, Value]:
    """Return the results of all ranks. Raises RankError for the first rank that fails, ends or does not answer."""
    results: dict[int, Value] = {}
    silence = Silence(range(len(processes)), timeout_s)
    look_s = time.monotonic() + LOOK_S
    while len(results) < len(processes):
        try:
            rank, message = inbox.get(timeout=max(0.0, look_s - time.monotonic()))
        except Empty:
            look_s = time.monotonic() + LOOK_S
            if silent := silence.look():
                raise RankError(silent_ranks(silent, timeout_s)) from None
            continue
        silence.hear(rank)
        if isinstance(message, _Returned):
            results[rank] = message.value
            silence.forget(rank)
        elif isinstance(message, _Failed | _Ended):
            raise _cause(rank, message, processes, inbox)
    return results


def _cause(rank: int, message: _Failed | _Ended, processes: Sequence[LocalProcess], inbox: _Inbox) -> RankError:
    """Return the error of a rank. If the rank lost a peer that ends soon, return the error of that peer.

    A rank ends once it has said that it lost a peer. That end says nothing of the peer.
    """
    error, deadline_s = _error(rank, message, processes[rank]), time.monotonic() + _GRACE_S
    if not isinstance(message, _Failed) or not message.lost_a_peer:
        return error
    bereft = {rank}
    while time.monotonic() < deadline_s:
        with suppress(Empty):
            rank, other = inbox.get(timeout=max(0.0, deadline_s - time.monotonic()))
            if isinstance(other, _Failed) and other.lost_a_peer:
                bereft.add(rank)
            elif isinstance(other, _Failed | _Ended) and rank not in bereft:
                return _error(rank, other, processes[rank])
    return error


def _error(rank: int, message: _Failed | _Ended, process: LocalProcess) -> RankError:
    if isinstance(message, _Failed):
        return RankError(f"rank {rank} failed: {message.message}")
    code = process.exit_code()
    if code is not None and code < 0:
        return RankError(f"rank {rank} was ended by {signal.Signals(-code).name}; the other ranks were stopped")
    return RankError(f"rank {rank} ended with exit code {code} before its work was done; the other ranks were stopped")


# --- in a started process ----------------------------------------------------------------------------------


def _serve(line: Line, member: JobMember, device: DeviceKind) -> None:
    """Join the job and run the requested work. On any error, end the process with all its threads at once."""
    try:
        worker = joined_worker(device, member)
        with suppress(EOFError):
            while True:
                function, arguments, named = line.receive()
                line.send(_Returned(function(worker, *arguments, **named)))
        dist.destroy_process_group()
    except BaseException as error:  # after any error the process must end and report the error
        own = isinstance(error, ExecutionError)
        lost_a_peer = isinstance(error, CommunicationError) or (isinstance(error, RuntimeError) and not own)
        message = str(error) if own else f"{type(error).__name__}: {error}"
        with suppress(EOFError):
            line.send(_Failed(message, lost_a_peer))
        os._exit(1)
