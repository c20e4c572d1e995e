"""A session on real ranks: processes of this machine, or those of the job that this process belongs to."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import torch
from msgspec.structs import replace

from backends.execution.errors import ExecutionError, JobError
from backends.execution.request import Continuation, DeviceKind, ExecutionRequest
from backends.execution.result import Execution, RankResult
from backends.execution.silence import SILENCE_S
from backends.torch.launching.environment import JobMember, job_member
from backends.torch.launching.joined import JoinedRank
from backends.torch.launching.local import LocalRanks
from backends.torch.launching.worker import process_of, run_request
from sim.plan.checking.check import check
from sim.plan.session.protocol import Array, Seen, StepResult
from sim.plan.session.residents import Residents, microbatches_of, observed_by
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Plan


class TorchSession:
    """Ranks that are started once, or joined, and run one plan after the other.

        with TorchSession(4) as session:
            result = session.step(plan)

    Where the environment says so (RANK, as torchrun and Slurm jobs set it), this process is one rank of a running job:
    it joins, every process makes the same calls, and each gets the same results of steps. Else it starts ``num_ranks``
    local processes. Persistent buffers live on from step to step, by name and rank of the session.
    ``timeout_s``: how long a rank may not answer, or not come to a running job. A rank answers while it computes.
    ``request_of``: what a step asks of a plan, such as a check; None: that it is run and timed. ``on_step``: is told
    what every rank found out in a step.

    Entering raises JobError where the environment describes no job of so many ranks, ExecutionError where there are too
    few devices. A rank that fails, is killed or does not answer ends all others, with a RankError that names it.
    """

    def __init__(
        self,
        num_ranks: int,
        device: DeviceKind = "cpu",
        timeout_s: float = SILENCE_S,
        *,
        request_of: Callable[[Plan], ExecutionRequest] | None = None,
        on_step: Callable[[Execution], None] | None = None,
    ) -> None:
        self._num_ranks, self._device, self._timeout_s = num_ranks, device, timeout_s
        self._request_of, self._on_step = request_of or _timed, on_step
        self._ranks: LocalRanks | JoinedRank | None = None
        self._residents = Residents()

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of the session."""
        return self._num_ranks

    @property
    def residents(self) -> Residents:
        """Return which persistent buffers the steps so far have left on which rank."""
        return self._residents

    @property
    def processes(self) -> list[int]:
        """Return the process of every rank, by its id on its machine."""
        return self._running.call(process_of)

    def step(self, plan: Plan) -> StepResult:
        """Run a plan to its end and return what came of it.

        Raises CheckError for a plan that could not run, SessionError for one that does not go on from what earlier
        plans left, ExecutionError where the run fails.
        """
        ranks, residents = self._running, self._residents
        check(plan)
        residents.check(plan, self._num_ranks)
        after = Continuation(residents.num_plans, residents.num_steps)
        found = ranks.call(run_request, replace(self._request_of(plan), after=after))
        self._residents = residents.after(plan)
        execution = Execution(plan, tuple(result for result in found if result is not None))
        if self._on_step is not None:
            self._on_step(execution)
        return _step_result(execution)

    def run(self, request: ExecutionRequest) -> Execution | None:
        """Return what all ranks found out about a run of its own, which neither takes nor leaves buffers.

        None on the ranks of a running job that do not report. Raises ExecutionError where the run fails.
        """
        found = self._running.call_for_first(run_request, request)
        return None if found is None else Execution(request.plan, tuple(result for result in found if result))

    def close(self) -> None:
        """End all ranks that it has started, or leave the job."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        member = job_member(os.environ, [])
        ranks = self._local() if member is None else self._joined(member)
        self._ranks = ranks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.__exit__(kind, error, trace)

    def _local(self) -> LocalRanks:
        if self._device == "cuda" and self._num_ranks > torch.cuda.device_count():
            devices = f"{torch.cuda.device_count()} CUDA devices"
            rule = f"the plan has {self._num_ranks} ranks and this machine {devices}"
            remedy = "leave --device out, write smaller degrees, or join machines with torchrun"
            raise ExecutionError(f"{rule};\n    {remedy}")
        return LocalRanks(self._num_ranks, self._device, self._timeout_s)

    def _joined(self, member: JobMember) -> JoinedRank:
        if member.size != self._num_ranks:
            rule = f"the session has {self._num_ranks} ranks, the job has {member.size} (WORLD_SIZE)"
            remedy = "start as many processes as the session has ranks"
            raise JobError("WORLD_SIZE", str(member.size), rule, remedy)
        return JoinedRank(member, self._device, self._timeout_s)

    @property
    def _running(self) -> LocalRanks | JoinedRank:
        if self._ranks is None:
            raise ExecutionError("the session is not open: use it in a with statement")
        return self._ranks


def execute(
    requests: Sequence[ExecutionRequest], device: DeviceKind = "cpu", *, timeout_s: float = SILENCE_S
) -> list[Execution] | None:
    """Run requests one after the other in one session; each is a run of its own.

    In a running job only rank 0 gets the executions, the others None. Raises JobError where the environment describes
    no job that fits the plans, else as a session.
    """
    if not requests:
        return []
    member = job_member(os.environ, [request.plan for request in requests])
    size = max(request.plan.mesh.size for request in requests) if member is None else member.size
    with TorchSession(size, device, timeout_s) as session:
        executions = [session.run(request) for request in requests]
    found = [execution for execution in executions if execution is not None]
    return found if len(found) == len(requests) else None


def _timed(plan: Plan) -> ExecutionRequest:
    return ExecutionRequest(plan=plan, timing="step")


def _step_result(execution: Execution) -> StepResult:
    plan, results = execution.plan, execution.ranks
    duration_s = execution.iteration_time_s
    observed: dict[str, dict[int, Array]] = {name: {} for name in sorted(plan.observed)}
    for result in results:
        for name, by_rank in observed.items():
            values = _values(plan, result, name)
            if values is not None:
                by_rank[plan.session_ranks[result.rank]] = values
    work = {plan.session_ranks[result.rank]: result.work for result in results}
    return StepResult(duration_s, Seen(duration_s, observed), work)


def _values(plan: Plan, result: RankResult, name: str) -> Array | None:
    """Return what a rank reports of an observed buffer, None where it has none."""
    program = plan.program_of(result.rank)
    if name not in observed_by(plan, program):
        return None
    if program.buffers[name].scope is not Scope.MICROBATCH:
        return result.values[name, None]
    return np.stack([result.values[name, microbatch] for microbatch in microbatches_of(program, name)])
