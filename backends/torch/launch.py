"""Run plans on real processes: local ones of our own, or those of the job that this process belongs to."""

import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from backends.torch.check import CheckReport
from backends.torch.errors import CommunicationError, ExecutionError, OpError, RankError
from backends.torch.worker import DeviceKind, ExecutionRequest, RankResult, run_all
from sim.plan.program import Plan

_GRACE_S = 3.0
"""How long a rank that lost a peer waits before it ends, so that the launcher meets the peer's end first."""
_WATCH_S = 1.0
"""How often a launched process looks whether its parent is alive."""


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
    requests: Sequence[ExecutionRequest], device: DeviceKind = "cpu", *, timeout_s: float = 300.0
) -> list[Execution] | None:
    """Run requests one after the other in the same processes, one per rank of the largest plan.

    Where RANK is set, this process is one rank of a running job (torchrun, Slurm): it joins, and only rank 0
    gets the executions, the others None. Else local processes are launched through torch's elastic launcher.
    ``timeout_s`` bounds the wait for a peer that neither answers nor dies.

    Raises ExecutionError where a plan does not fit the job or an op fails, RankError naming a rank that was
    killed or failed; then no process is left behind.
    """
    if not requests:
        return []
    if "RANK" in os.environ:
        return _joined(requests, device, timeout_s)
    size = max(request.plan.mesh.size for request in requests)
    if device == "cuda" and size > torch.cuda.device_count():
        raise ExecutionError(f"the plan has {size} ranks and this machine {torch.cuda.device_count()} CUDA devices")
    by_rank = launch_local(size, _rank_main, (requests, device, timeout_s))
    return _executions(requests, [by_rank[rank] for rank in range(size)])


def _executions(
    requests: Sequence[ExecutionRequest], by_rank: Sequence[Sequence[RankResult | None]]
) -> list[Execution]:
    return [
        Execution(request.plan, tuple(result for results in by_rank if (result := results[i]) is not None))
        for i, request in enumerate(requests)
    ]


# --- a running job -----------------------------------------------------------------------------------------


def _joined(requests: Sequence[ExecutionRequest], device: DeviceKind, timeout_s: float) -> list[Execution] | None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    for request in requests:
        if request.plan.mesh.size != world_size:
            raise ExecutionError(
                f"plan {request.plan.name!r} has {request.plan.mesh.size} ranks, the job has {world_size} (WORLD_SIZE)"
            )
    results = run_all(requests, device, timeout_s)
    gathered: list[Any] | None = [None] * world_size if dist.get_rank() == 0 else None
    dist.gather_object(results, gathered)
    dist.destroy_process_group()
    return None if gathered is None else _executions(requests, gathered)


# --- local processes ---------------------------------------------------------------------------------------


def launch_local(size: int, entry: Callable[..., Any], arguments: Sequence[Any]) -> dict[int, Any]:
    """Run ``entry(*arguments)`` in ``size`` processes of this machine; return what each rank returned.

    Raises RankError naming a rank that was killed or failed, ExecutionError where a signal stops the run; then no
    process is left behind.
    """
    with TemporaryDirectory(prefix="meshtwin-") as logs, _quiet_launcher():
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=size, max_restarts=0, monitor_interval=0.1,
            run_id=uuid.uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            start_method="spawn", logs_specs=DefaultLogsSpecs(log_dir=logs),
        )  # fmt: skip
        try:
            results: dict[int, Any] = elastic_launch(config, _bound_to)(os.getpid(), entry, *arguments)
        except ChildFailedError as error:
            raise _rank_error(error) from error
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from error
            raise ExecutionError(f"stopped by {error.sigval.name}; all ranks were stopped") from error
    return results


def _bound_to(parent: int, entry: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``entry`` in a launched process that ends when its parent does, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    Thread(target=watch, name="parent watch", daemon=True).start()
    return entry(*arguments)


def _rank_error(error: ChildFailedError) -> RankError:
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        return RankError(f"rank {rank} was ended by {failure.signal_name()}; the other ranks were stopped")
    reported = failure.error_file_data.get("message", failure.message)
    what = reported["message"] if isinstance(reported, dict) else reported
    for name in (OpError.__name__, CommunicationError.__name__, ExecutionError.__name__):
        what = str(what).removeprefix(f"{name}: ")
    return RankError(f"rank {rank} failed: {what}")


@contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Keep the launcher's own report of a failure off the terminal: we raise it."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _rank_main(requests: Sequence[ExecutionRequest], device: DeviceKind, timeout_s: float) -> list[RankResult | None]:
    """Run in a launched process; end it at once where anything fails, threads in a collective included."""
    try:
        results = run_all(requests, device, timeout_s)
        dist.destroy_process_group()
    except BaseException as error:  # whatever it is, the process must end and say why
        end_process(error)
    return results


def end_process(error: BaseException) -> NoReturn:
    """End a launched process at once, threads in a collective included, and let the launcher know why."""
    lost_a_peer = isinstance(error, RuntimeError) and not isinstance(error, ExecutionError)
    if isinstance(error, CommunicationError) or lost_a_peer:
        time.sleep(_GRACE_S)
    get_error_handler().record_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
