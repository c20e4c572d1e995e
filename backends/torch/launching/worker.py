"""The work of one rank of a job: run requests one after the other, keep their buffers, and report."""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median_low
from time import perf_counter, process_time
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from backends.execution.errors import JobError
from backends.execution.request import DeviceKind, ExecutionRequest
from backends.execution.result import RankResult
from backends.torch.communication.groups import Communicators
from backends.torch.launching.environment import JobMember
from backends.torch.launching.store import joined_store
from backends.torch.reference.checking import checked, kept_by
from backends.torch.reference.references import References
from backends.torch.running.allocator import keep_freed_memory
from backends.torch.running.devices import CpuDevice, CudaDevice, Device, RankTimes
from backends.torch.running.interpreter import Interpreter
from backends.torch.running.memory import account_memory
from backends.torch.running.state import persistent_slots
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan

_LONGEST_WAIT_S: Final = 1800.0
"""Longest wait of an op for its peers, which may compute meanwhile: torch's own limit for gloo.

If a peer does not answer, the run ends much earlier (``Silence``).
"""


class StepTimes(NamedTuple):
    """One rank's op times in one step, and the processor time of its threads."""

    times: RankTimes
    cpu_s: float


@dataclass(slots=True)
class Worker:
    """A rank of a running job; torch.distributed is initialised. ``_kept``: tensors left by a session's plans."""

    device: Device
    communicators: Communicators
    one_machine: bool
    _kept: dict[str, torch.Tensor] = field(default_factory=dict)
    _references: References = field(init=False)

    def __post_init__(self) -> None:
        self._references = References(self.device.torch_device)

    def run(self, request: ExecutionRequest) -> RankResult | None:
        """Run one request and return its result; None on a rank that idles. All ranks of the job must call this."""
        plan, here = request.plan, dist.get_rank()
        self.communicators.prepare(plan, explicit=request.explicit is not None)
        ranks = plan.session_ranks
        interpreter = self._interpreter(request, ranks.index(here)) if here in ranks else None
        steps = deque[StepTimes](maxlen=request.counted_steps)
        for step in range(request.iterations):
            if interpreter is not None:
                interpreter.prepare(step, request.iterations)
            origin_s = common_origin_s(one_machine=self.one_machine)
            steps.append(self._step(request, interpreter, origin_s))
        usual, durations_s = usual_step([times.step_s for times, _ in steps])
        peak_bytes = self.device.peak_allocated_bytes()
        if request.longest_lag:
            origin_s = common_origin_s(one_machine=self.one_machine)
            if interpreter is not None:
                interpreter.drain(request.iterations, origin_s)
        if request.after is not None:
            self._keep(plan, here, interpreter)
        if interpreter is None:
            return None
        return self._result(request, interpreter, steps[usual], durations_s, peak_bytes)

    def _step(self, request: ExecutionRequest, interpreter: Interpreter | None, origin_s: float) -> StepTimes:
        """Run the prepared step; return its times. A rank that idles has no op times."""
        if interpreter is None:
            return StepTimes(RankTimes((), (), 0.0), 0.0)
        began_cpu_s = process_time()
        times = interpreter.run(origin_s, time_ops=request.timing == "op")
        return StepTimes(times, process_time() - began_cpu_s)

    def _interpreter(self, request: ExecutionRequest, rank: int) -> Interpreter:
        kept = request.keep | request.plan.observed | kept_by(request, rank)
        after, device = request.after, self.device
        starts = after is None or not after.plans
        slots = persistent_slots(request.plan, rank, device.torch_device, None if starts else self._kept)
        steps = 0 if after is None else after.steps
        return Interpreter(
            request.plan, rank, device, self.communicators, slots, mute=request.mute, kept=kept,
            explicit=request.explicit, first_step=steps,
        )  # fmt: skip

    def _keep(self, plan: Plan, here: int, interpreter: Interpreter | None) -> None:
        """Keep the persistent tensors that a session's plan leaves on this rank."""
        if here in plan.leavers:
            self._kept.clear()
        if interpreter is not None:
            self._kept |= interpreter.persistent_tensors()  # only the tensors that the plan's ops touched
            for name in interpreter.program.released:
                self._kept.pop(name, None)

    def _result(
        self,
        request: ExecutionRequest,
        interpreter: Interpreter,
        step: StepTimes,
        durations_s: tuple[float, ...],
        peak_bytes: int | None,
    ) -> RankResult:
        program, schedule, times = interpreter.program, interpreter.schedule, step.times
        wanted = request.keep | request.plan.observed
        return RankResult(
            rank=interpreter.rank,
            role=program.role_name,
            starts_s=times.starts_s,
            ends_s=times.ends_s,
            step_s=times.step_s,
            cpu_s=step.cpu_s,
            memory=account_memory(program, interpreter.slots),
            check=checked(interpreter, request, self._references),
            allocator_peak_bytes=peak_bytes,
            values={
                key: slot.tensor.to("cpu", torch.float64).numpy()
                for key, slot in schedule.slots.items()
                if key[0] in wanted and slot.tensor is not None
            },
            sent_bytes=interpreter.sent_bytes,
            host_peak_bytes=account_memory(program, interpreter.slots, Tier.HOST).peak_bytes,
            work=interpreter.work,
            step_times_s=durations_s,
        )


def run_request(worker: Worker, request: ExecutionRequest) -> RankResult | None:
    """Run a request on a rank that waits for work."""
    return worker.run(request)


def process_of(worker: Worker) -> int:
    """Return the process id of a rank."""
    del worker
    return os.getpid()


def usual_step(times_s: Sequence[float]) -> tuple[int, tuple[float, ...]]:
    """Return the index of the step with the median time, and the times of all steps. All ranks get the same result.

    ``times_s``: this rank's step times. A step takes as long as its slowest rank.
    """
    slowest = torch.tensor(times_s, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    durations_s = tuple(slowest.tolist())
    return durations_s.index(median_low(durations_s)), durations_s


def common_origin_s(*, one_machine: bool) -> float:
    """Return the reading of ``perf_counter`` at the begin of a step, when all ranks are ready.

    On one machine all processes share the clock, and all count from the moment at which the first rank leaves the
    barrier. Across machines each rank counts from the moment at which it leaves the barrier itself.
    """
    dist.barrier()
    origin = torch.tensor([perf_counter()], dtype=torch.float64)
    if one_machine:
        dist.all_reduce(origin, dist.ReduceOp.MIN)
    return float(origin)


def joined_worker(kind: DeviceKind, member: JobMember) -> Worker:
    """Join a job as one of its processes and return its worker.

    Collectives and messages of the plan use NCCL on GPUs and gloo on CPUs. The job's own control messages use gloo.
    """
    device: Device
    if kind == "cuda":
        if member.local_rank >= torch.cuda.device_count():
            rule = f"this machine has {torch.cuda.device_count()} CUDA devices, of which each rank needs its own"
            raise JobError("LOCAL_RANK", str(member.local_rank), rule, "start as many ranks here as there are devices")
        device = CudaDevice(member.local_rank)
        backend = "cpu:gloo,cuda:nccl"
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
        device, backend = CpuDevice(), "gloo"
    wait = timedelta(seconds=_LONGEST_WAIT_S)
    if not dist.is_initialized():
        store = joined_store(member.address, member.port, _LONGEST_WAIT_S)
        dist.init_process_group(backend, store=store, rank=member.rank, world_size=member.size, timeout=wait)
    one_machine = member.local_size == member.size
    return Worker(device, Communicators(device.torch_device, _LONGEST_WAIT_S), one_machine)
