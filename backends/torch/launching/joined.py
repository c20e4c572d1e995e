"""This process as a rank of a running job, started by torchrun or Slurm."""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import torch.distributed as dist

from backends.execution.errors import ExecutionError, RankError
from backends.execution.request import DeviceKind
from backends.torch.launching.environment import JobMember
from backends.torch.launching.meeting import Meeting
from backends.torch.launching.worker import Worker, joined_worker

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


class JoinedRank:
    """The membership of this process, as one rank, in a job that torchrun or Slurm started.

    Entering joins the other processes of the job. All processes of the job make the same calls in the same order.
    """

    def __init__(self, member: JobMember, device: DeviceKind, timeout_s: float) -> None:
        self.member, self._device, self._timeout_s = member, device, timeout_s
        self._meeting = ExitStack()
        self._worker: Worker | None = None

    @property
    def size(self) -> int:
        """Return the number of ranks of the job."""
        return self.member.size

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if not dist.is_initialized():
                stack.enter_context(Meeting(self.member, self._timeout_s))
            self._worker = joined_worker(self._device, self.member)
            self._meeting = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._worker is not None:
                dist.barrier()
                dist.destroy_process_group()
        finally:
            self._worker = None
            self._meeting.__exit__(kind, error, trace)

    def call(
        self,
        function: Callable[Concatenate[Worker, Arguments], Value],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Value]:
        """Call ``function(worker, ...)`` on every rank; return all results, in rank order, on every rank."""
        every: list[tuple[Value] | None] = [None] * self.size
        self._run(lambda found: dist.all_gather_object(every, found), function, *arguments, **named)
        return [found[0] for found in every if found is not None]

    def call_for_first(
        self,
        function: Callable[Concatenate[Worker, Arguments], Value],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> list[Value] | None:
        """Call ``function(worker, ...)`` on every rank; return all results on rank 0, and None on the others."""
        every: list[tuple[Value] | None] | None = [None] * self.size if self.member.rank == 0 else None
        self._run(lambda found: dist.gather_object(found, every), function, *arguments, **named)
        return None if every is None else [found[0] for found in every if found is not None]

    def _run(
        self,
        share: Callable[[tuple[Value]], object],
        function: Callable[Concatenate[Worker, Arguments], Value],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> None:
        if self._worker is None:
            raise ExecutionError("this rank has left its job")
        try:
            share((function(self._worker, *arguments, **named),))
        except ExecutionError:
            raise
        except RuntimeError as error:  # of torch.distributed
            raise RankError(f"rank {self.member.rank} lost another rank of the job: {error}") from error
