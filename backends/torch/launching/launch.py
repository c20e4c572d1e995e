"""Run plans on real processes: local ones of our own, or those of the job that this process belongs to."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

import torch
import torch.distributed as dist

from backends.processes import BEAT, Line, LocalProcess, local_processes
from backends.torch.errors import CommunicationError, ExecutionError, RankError
from backends.torch.launching.environment import JobMember, job_member
from backends.torch.launching.meeting import Meeting
from backends.torch.launching.silence import LOOK_S, SILENCE_S, Silence, silent_ranks
from backends.torch.launching.store import served_store
from backends.torch.launching.worker import DeviceKind, ExecutionRequest, RankResult, run_all
from backends.torch.reference.check import CheckReport
from sim.plan.words.program import Plan

_GRACE_S: Final = 2.0
"""How long the end of a rank that lost a peer waits for that of the peer, which is the cause."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One request, run: the results of all ranks in order."""

    plan: Plan
    ranks: tuple[RankResult, ...]

    @property
    def iteration_time_s(self) -> float:
        """Return the time of the last step, to the end of the last rank."""
        return max(result.step_s for result in self.ranks)

    @property
    def check(self) -> CheckReport | None:
        """Return all ranks' checks in one (names lead with the rank), None where none was asked for."""
        reports = [(result.rank, result.check) for result in self.ranks if result.check is not None]
        if not reports:
            return None
        errors = {f"rank {rank}: {name}": error for rank, report in reports for name, error in report.errors.items()}
        return CheckReport(errors, reports[0][1].tolerance)


def execute(
    requests: Sequence[ExecutionRequest], device: DeviceKind = "cpu", *, timeout_s: float = SILENCE_S
) -> list[Execution] | None:
    """Run requests one after the other in the same processes, one per rank of the largest plan.

    Where the environment says so (RANK, as torchrun and Slurm jobs set it), this process is one rank of a running job:
    it joins, and only rank 0 gets the executions, the others None. Else it starts local processes.
    ``timeout_s``: how long a rank may not answer, or not come to a running job. A rank answers while it computes.

    Raises JobError where the environment describes no job that fits the plans, ExecutionError where an op fails, and
    RankError naming a rank that was killed, failed or does not answer; then no local process is left behind.
    """
    if not requests:
        return []
    member = job_member(os.environ, [request.plan for request in requests])
    if member is not None:
        return _joined(requests, device, member, timeout_s)
    size = max(request.plan.mesh.size for request in requests)
    if device == "cuda" and size > torch.cuda.device_count():
        raise ExecutionError(f"the plan has {size} ranks and this machine {torch.cuda.device_count()} CUDA devices")
    by_rank = launch_local(size, _rank_main, (requests, device), timeout_s=timeout_s)
    return _executions(requests, [by_rank[rank] for rank in range(size)])


def _executions(
    requests: Sequence[ExecutionRequest], by_rank: Sequence[Sequence[RankResult | None]]
) -> list[Execution]:
    return [
        Execution(request.plan, tuple(result for results in by_rank if (result := results[i]) is not None))
        for i, request in enumerate(requests)
    ]


def _rank_main(member: JobMember, requests: Sequence[ExecutionRequest], device: DeviceKind) -> list[RankResult | None]:
    results = run_all(requests, device, member)
    dist.destroy_process_group()
    return results


# --- a running job -----------------------------------------------------------------------------------------


def _joined(
    requests: Sequence[ExecutionRequest], device: DeviceKind, member: JobMember, timeout_s: float
) -> list[Execution] | None:
    gathered: list[Any] | None = [None] * member.size if member.rank == 0 else None
    with nullcontext() if dist.is_initialized() else Meeting(member, timeout_s):
        try:
            dist.gather_object(run_all(requests, device, member), gathered)
            dist.destroy_process_group()
        except ExecutionError:
            raise
        except RuntimeError as error:  # of torch.distributed
            raise RankError(f"rank {member.rank} lost another rank of the job: {error}") from error
    return None if gathered is None else _executions(requests, gathered)


# --- local processes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Returned:
    """A rank has done its work."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Failed:
    """A rank has raised an error; ``lost_a_peer``: perhaps because another one ended."""

    message: str
    lost_a_peer: bool


@dataclass(frozen=True, slots=True)
class _Ended:
    """The process of a rank has ended without a word."""


_Inbox = SimpleQueue[tuple[int, Any]]


def launch_local(
    size: int, entry: Callable[..., Any], arguments: Sequence[Any], *, timeout_s: float = SILENCE_S
) -> dict[int, Any]:
    """Run ``entry(member, *arguments)`` in ``size`` processes of this machine; return what each rank returned.

    ``timeout_s``: how long a rank may not answer. Raises RankError naming a rank that was killed, failed or does not
    answer; then no process is left behind.
    """
    store, port = served_store()
    inbox: _Inbox = SimpleQueue()
    with local_processes(size, beat_s=LOOK_S) as processes:
        for rank, process in enumerate(processes):
            member = JobMember(
                rank=rank, size=size, local_rank=rank, local_size=size, address="localhost", port=port,
                launcher_serves=True,
            )  # fmt: skip
            work = (_serve, member, entry, arguments)
            Thread(target=_listen, args=(process, work, rank, inbox), name=f"rank {rank}", daemon=True).start()
        results = _results(processes, inbox, timeout_s)
    del store  # it served until all ranks were gone
    return results


def _listen(process: LocalProcess, work: Sequence[Any], rank: int, inbox: _Inbox) -> None:
    """Give a rank its work, and pass on what it says, until it has done it."""
    try:
        process.begin(*work)
        while True:
            message = process.line.receive()
            inbox.put((rank, message))
            if message is not BEAT:
                return
    except EOFError:
        inbox.put((rank, _Ended()))
    except Exception as error:  # of pickling, here: it must not pass unseen
        inbox.put((rank, _Failed(f"{type(error).__name__}: {error}", lost_a_peer=False)))


def _serve(line: Line, member: JobMember, entry: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Run ``entry`` in a launched process; end it at once where anything fails, threads in a collective included."""
    try:
        line.send(_Returned(entry(member, *arguments)))
    except BaseException as error:  # whatever it is, the process must end and say why
        own = isinstance(error, ExecutionError)
        lost_a_peer = isinstance(error, CommunicationError) or (isinstance(error, RuntimeError) and not own)
        message = str(error) if own else f"{type(error).__name__}: {error}"
        with suppress(EOFError):
            line.send(_Failed(message, lost_a_peer))
        os._exit(1)


def _results(processes: Sequence[LocalProcess], inbox: _Inbox, timeout_s: float) -> dict[int, Any]:
    """Return what all ranks returned. Raises RankError for the first that fails, ends or does not answer."""
    results: dict[int, Any] = {}
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
        elif message is not BEAT:
            raise _cause(rank, message, processes, inbox)
    return results


def _cause(rank: int, message: _Failed | _Ended, processes: Sequence[LocalProcess], inbox: _Inbox) -> RankError:
    """Return the error of a rank; of one that lost a peer that of the peer, if it ends soon."""
    error, deadline_s = _error(rank, message, processes[rank]), time.monotonic() + _GRACE_S
    while isinstance(message, _Failed) and message.lost_a_peer and time.monotonic() < deadline_s:
        with suppress(Empty):
            rank, other = inbox.get(timeout=max(0.0, deadline_s - time.monotonic()))
            if isinstance(other, _Ended) or (isinstance(other, _Failed) and not other.lost_a_peer):
                return _error(rank, other, processes[rank])
    return error


def _error(rank: int, message: _Failed | _Ended, process: LocalProcess) -> RankError:
    if isinstance(message, _Failed):
        return RankError(f"rank {rank} failed: {message.message}")
    code = process.exit_code()
    if code is not None and code < 0:
        return RankError(f"rank {rank} was ended by {signal.Signals(-code).name}; the other ranks were stopped")
    return RankError(f"rank {rank} ended with exit code {code} before its work was done; the other ranks were stopped")
